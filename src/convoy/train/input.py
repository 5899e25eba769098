"""The input of a run: images in memory, or batches that are read from files during training."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from convoy.data.augment import Output, Transformation
from convoy.data.batches import AlternatingFlip, Batches, Order, SequentialOrder
from convoy.data.catalog import DatasetInfo, Split, load, synthetic_split
from convoy.data.image_batches import BatchRequest, ImageBatches, ImageBatchJob
from convoy.data.image_files import ImageFiles, find_images
from convoy.train.flags import Options
from convoy.train.run_settings import RunSettings

# Upper limit for the images that layers are adapted to.
MAX_PIXELS = 2_000_000


@dataclass(frozen=True)
class Images:
    """The splits of a dataset, each in memory or as files."""

    train: Split | ImageFiles
    test: Split | ImageFiles

    @property
    def train_samples(self) -> int:
        return _count(self.train)

    @property
    def test_samples(self) -> int:
        return _count(self.test)


def open_images(options: Options, info: DatasetInfo, seed: int) -> Images:
    """Read or generate the dataset.

    Raises:
        ValueError: if it does not exist, or is damaged.
    """
    if options.synthetic_data in ("cpu", "host"):
        return Images(
            synthetic_split(info, info.train, seed), synthetic_split(info, info.test, seed)
        )
    if options.synthetic_data in ("ipu", "device"):
        rng = np.random.default_rng(seed)
        return Images(*(_placeholders(info, info.size(part), rng) for part in ("train", "test")))
    if info.name == "imagenet":
        return _open_files(options)
    data = load(info.name, options.dataset_path)
    return Images(data.train, data.test)


def _open_files(options: Options) -> Images:
    if importlib.util.find_spec("cv2") is None:
        raise ValueError(
            "Decoding images needs the package opencv-python-headless. Install it with: "
            "pip install opencv-python-headless"
        )
    root, empty = Path(options.dataset_path), (np.zeros(0), np.zeros(0))
    images = Images(
        find_images(root, "train") if options.training else empty,
        find_images(root, "test") if options.validation else empty,
    )
    for files in (images.train, images.test):
        if not isinstance(files, tuple) and files.damaged and options.damaged_images == "stop":
            raise ValueError(f"{files.damaged[0]}. Pass --damaged-images skip to leave it out.")
    return images


@contextlib.contextmanager
def training_input(settings: RunSettings, images: Images) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `fit` for the training data."""
    options, batch, events = settings.options, settings.batch, settings.events
    transformation = training_transformation(settings)
    order = training_order(settings, images.train_samples)
    flips = AlternatingFlip(order) if _flips_alternate(settings) else None
    # Epochs of `fit` may be longer than those of the data.
    num_batches = events.keras_epoch * batch.micro_batches_per_update
    if not isinstance(images.train, tuple):
        job = ImageBatchJob(
            images.train,
            batch.micro_batch,
            transformation,
            training=options.augment,
            flip=options.augment
            and options.flip == "random"
            and not options.accelerator_side_preprocess,
            on_damage=options.damaged_images,
        )
        workers = _workers(settings)
        with _closing(
            ImageBatches(job, order, num_batches, workers, _print_skipped, flips)
        ) as batches:
            yield {"x": batches, "shuffle": False}
        return
    x, y = images.train
    # Otherwise Keras would make an update of the samples of an incomplete batch.
    divides = events.keras_epoch * batch.global_batch == len(x)
    changes = transformation.is_random or flips or options.synthetic_data in ("cpu", "host")
    if divides and not changes:
        yield {
            "x": transformation.convert(x),
            "y": y,
            "batch_size": batch.micro_batch,
            "shuffle": options.shuffle,
        }
    else:
        batches = Batches(x, y, order, num_batches, transformation, flips)
        yield {"x": batches, "shuffle": False}


@contextlib.contextmanager
def test_input(settings: RunSettings, images: Images) -> Iterator[dict[str, Any]]:
    """Yield the arguments of `evaluate` for all validation images."""
    options, size = settings.options, settings.validation_batch
    transformation = Transformation(settings.info, _output(settings))
    order = SequentialOrder(images.test_samples, size)
    if not isinstance(images.test, tuple):
        job = ImageBatchJob(
            images.test, size, transformation, training=False, on_damage=options.damaged_images
        )
        workers = _workers(settings)
        with _closing(
            ImageBatches(job, order, order.num_batches, workers, _print_skipped)
        ) as batches:
            yield {"x": batches}
        return
    x, y = images.test
    if options.synthetic_data in ("cpu", "host"):
        yield {"x": Batches(x, y, order, order.num_batches, transformation)}
    else:
        yield {"x": transformation.convert(x), "y": y, "batch_size": size}


def some_images(settings: RunSettings, images: Images) -> np.ndarray:
    """Return evenly spaced training images in the form in which they are copied to the device."""
    height, width, _ = settings.info.shape
    count = min(images.train_samples, max(1, MAX_PIXELS // (height * width)))
    chosen = np.linspace(0, images.train_samples - 1, count).astype(int)
    transformation = Transformation(settings.info, _output(settings))
    if isinstance(images.train, tuple):
        return transformation.convert(images.train[0][chosen])
    job = ImageBatchJob(
        images.train,
        count,
        transformation,
        training=False,
        on_damage=settings.options.damaged_images,
    )
    found = np.empty(job.shape, job.dtype)
    job.run(BatchRequest(chosen, (0,)), found)
    return found


def training_transformation(settings: RunSettings) -> Transformation:
    """Return the preprocessing of training images on the host."""
    info, options = settings.info, settings.options
    augments = options.augment and options.synthetic_data is None
    return Transformation(
        info,
        _output(settings),
        # Images in files are flipped when they are decoded.
        flip=augments
        and info.flip
        and options.flip == "random"
        and info.name != "imagenet"
        and not options.accelerator_side_preprocess,
        crop=augments and bool(info.crop_padding),
        border=options.crop_border,
        rand_augment=options.rand_augment if options.synthetic_data is None else 0.0,
        mixup=options.mixup,
        cutmix=options.cutmix,
    )


def training_order(settings: RunSettings, samples: int) -> Order:
    """Return the order of the training samples."""
    batch = settings.batch
    return Order(
        samples,
        batch.micro_batch,
        batches_per_epoch=settings.events.updates_per_epoch * batch.micro_batches_per_update,
        shuffle=settings.options.shuffle,
        seed=settings.seed,
    )


def _flips_alternate(settings: RunSettings) -> bool:
    """Return whether the host flips each image in every second epoch."""
    options = settings.options
    augments = options.augment and options.synthetic_data is None
    return augments and settings.info.flip and options.flip == "alternating"


@contextlib.contextmanager
def _closing(batches: ImageBatches) -> Iterator[ImageBatches]:
    """Close batches after use, and print the number of damaged images."""
    try:
        yield batches
    finally:
        batches.close()
        if batches.damaged:
            print(
                f"convoy train: {len(batches.damaged)} damaged images were skipped; others took "
                "their places.",
                file=sys.stderr,
            )


def _output(settings: RunSettings) -> Output:
    """Return the form in which images are copied to the device."""
    options = settings.options
    if options.synthetic_data in ("ipu", "device"):
        return "unchanged"
    if options.eight_bit_transfer:
        return "bytes"
    return "numbers" if options.accelerator_side_preprocess else "normalised"


def _workers(settings: RunSettings) -> int:
    cores, limit = len(os.sched_getaffinity(0)), settings.options.pipeline_num_parallel
    return cores if limit is None else min(limit, cores)


def _print_skipped(name: str) -> None:
    print(f"convoy train: skipped {name}", file=sys.stderr)


def _count(split: Split | ImageFiles) -> int:
    return len(split[1]) if isinstance(split, tuple) else len(split)


def _placeholders(info: DatasetInfo, size: int, rng: np.random.Generator) -> Split:
    """Return a byte in the place of each image that the device generates, with random labels."""
    return np.zeros((size, 1), np.uint8), rng.integers(0, info.classes, size, dtype=np.int32)
