"""What a run reads: images as arrays, or as batches that are made while it trains."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from convoy.data.augment import Output, Transformation
from convoy.data.batches import AlternatingFlip, Batch, Batches, Order, SequentialOrder
from convoy.data.catalog import DatasetInfo, Split, load, synthetic_split
from convoy.data.image_batches import BatchRequest, ImageBatches, ImageBatchJob, OnDamage
from convoy.data.image_files import ImageFiles, find_images
from convoy.train.options import Options
from convoy.train.run_settings import RunPlan

# Of the images that layers are adapted to.
MOST_PIXELS = 2_000_000


@dataclass(frozen=True)
class Images:
    """The splits of a run: bytes in memory, or files that are read while it goes on."""

    train: Split | ImageFiles
    test: Split | ImageFiles

    @property
    def train_samples(self) -> int:
        return _count(self.train)

    @property
    def test_samples(self) -> int:
        return _count(self.test)


def open_images(options: Options, info: DatasetInfo, seed: int) -> Images:
    """Read the data set, or make one up.

    Raises:
        ValueError: if it is nowhere to be found, or damaged.
    """
    if options.synthetic_data in ("cpu", "host"):
        return Images(
            synthetic_split(info, info.train, seed), synthetic_split(info, info.test, seed)
        )
    if options.synthetic_data in ("ipu", "device"):
        # The device makes images; one byte asks for each.
        rng = np.random.default_rng(seed)
        return Images(*(_numbers(info, info.size(part), rng) for part in ("train", "test")))
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
    root, nothing = Path(options.dataset_path), (np.zeros(0), np.zeros(0))
    images = Images(
        find_images(root, "train") if options.training else nothing,
        find_images(root, "test") if options.validation else nothing,
    )
    for files in (images.train, images.test):
        if not isinstance(files, tuple) and files.damaged and options.damaged_images == "stop":
            raise ValueError(f"{files.damaged[0]}. Pass --damaged-images skip to go on without.")
    return images


@contextlib.contextmanager
def training_input(plan: RunPlan, images: Images) -> Iterator[dict[str, Any]]:
    """Return the arguments of `fit` that say what to train on."""
    batch, events = plan.batch, plan.events
    transformation = training_transformation(plan)
    if not isinstance(images.train, tuple):
        make = ImageBatchJob(
            images.train,
            batch.micro_batch,
            transformation,
            training=plan.options.augment,
            flip=plan.options.augment
            and plan.options.flip == "random"
            and not plan.options.accelerator_side_preprocess,
            on_damage=_on_damage(plan),
        )
        order = training_order(plan, len(images.train))
        with _closing(
            ImageBatches(make, order, _fit_batches(plan), _workers(plan), _say, _flips(plan, order))
        ) as batches:
            yield {"x": batches, "shuffle": False}
        return
    x, y = images.train
    # Keras would make an update of samples that are left over, or save them for the next epoch.
    divides = events.keras_epoch * batch.global_batch == len(x)
    if (
        divides
        and not transformation.is_random
        and not _alternates(plan)
        and plan.options.synthetic_data not in ("cpu", "host")
    ):
        yield {
            "x": transformation.convert(x),
            "y": y,
            "batch_size": batch.micro_batch,
            "shuffle": plan.options.shuffle,
        }
        return
    order = training_order(plan, len(x))
    batches = Batches(x, y, order, _fit_batches(plan), transformation, _flips(plan, order))
    yield {"x": batches, "shuffle": False}


def some_images(plan: RunPlan, images: Images) -> np.ndarray:
    """Return images from all over the training data, as they are moved to the device."""
    height, width, _ = plan.info.shape
    count = min(images.train_samples, max(1, MOST_PIXELS // (height * width)))
    chosen = np.linspace(0, images.train_samples - 1, count).astype(int)
    transformation = Transformation(plan.info, _output(plan))
    if isinstance(images.train, tuple):
        return transformation.convert(images.train[0][chosen])
    make = ImageBatchJob(
        images.train, count, transformation, training=False, on_damage=_on_damage(plan)
    )
    found = np.empty(make.shape, make.dtype)
    make.run(BatchRequest(chosen, (0,)), found)
    return found


@contextlib.contextmanager
def test_input(plan: RunPlan, images: Images) -> Iterator[dict[str, Any]]:
    """Return the arguments of `evaluate` that say what to validate on: all held-out images."""
    transformation = Transformation(plan.info, _output(plan))
    if not isinstance(images.test, tuple):
        size = plan.validation_batch
        make = ImageBatchJob(
            images.test, size, transformation, training=False, on_damage=_on_damage(plan)
        )
        order = SequentialOrder(len(images.test), size)
        with _closing(
            ImageBatches(make, order, order.num_batches, _workers(plan), _say)
        ) as batches:
            yield {"x": batches}
        return
    x, y = images.test
    if plan.options.synthetic_data in ("cpu", "host"):
        yield {"x": TestBatches(x, y, plan.validation_batch, transformation)}
        return
    yield {"x": transformation.convert(x), "y": y, "batch_size": plan.validation_batch}


class TestBatches(keras.utils.PyDataset):
    """Held-out images, one replica's batch at a time."""

    __test__ = False

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, size: int, transformation: Transformation
    ) -> None:
        super().__init__()
        self.images = images
        self.labels = labels
        self.size = size
        self.transformation = transformation

    def __len__(self) -> int:
        return -(-len(self.labels) // self.size)

    def __getitem__(self, number: int) -> Batch:
        part = slice(number * self.size, (number + 1) * self.size)
        images = self.transformation.convert(self.images[part])
        return images, np.ascontiguousarray(self.labels[part])


def training_transformation(plan: RunPlan) -> Transformation:
    """Return what happens to images on the host before they are trained on."""
    info, options = plan.info, plan.options
    augments = options.augment and options.synthetic_data is None
    return Transformation(
        info,
        _output(plan),
        # Files are mirrored as they are decoded.
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


def training_order(plan: RunPlan, samples: int) -> Order:
    """Return which samples come when; in epochs of the data, whatever is an epoch to Keras."""
    return Order(
        samples,
        plan.batch.micro_batch,
        batches_per_epoch=plan.events.updates_per_epoch * plan.batch.micro_batches_per_update,
        shuffle=plan.options.shuffle,
        seed=plan.seed,
    )


def _alternates(plan: RunPlan) -> bool:
    """Say whether the host mirrors each image in every second epoch."""
    options = plan.options
    augments = options.augment and options.synthetic_data is None
    return augments and plan.info.flip and options.flip == "alternating"


def _flips(plan: RunPlan, order: Order) -> AlternatingFlip | None:
    return AlternatingFlip(order) if _alternates(plan) else None


@contextlib.contextmanager
def _closing(batches: ImageBatches) -> Iterator[ImageBatches]:
    """Have the workers end afterwards, and say what they could not read."""
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


def _fit_batches(plan: RunPlan) -> int:
    """Return the batches of what is an epoch to Keras."""
    return plan.events.keras_epoch * plan.batch.micro_batches_per_update


def _output(plan: RunPlan) -> Output:
    """Return the form in which images are moved to the device."""
    options = plan.options
    if options.synthetic_data in ("ipu", "device"):
        return "unchanged"
    if options.eight_bit_transfer:
        return "bytes"
    return "numbers" if options.accelerator_side_preprocess else "normalised"


def _workers(plan: RunPlan) -> int:
    cores, asked = len(os.sched_getaffinity(0)), plan.options.pipeline_num_parallel
    return cores if asked is None else min(asked, cores)


def _on_damage(plan: RunPlan) -> OnDamage:
    return plan.options.damaged_images


def _say(name: str) -> None:
    print(f"convoy train: skipped {name}", file=sys.stderr)


def _count(split: Split | ImageFiles) -> int:
    return len(split[1]) if isinstance(split, tuple) else len(split)


def _numbers(info: DatasetInfo, size: int, rng: np.random.Generator) -> Split:
    return np.zeros((size, 1), np.uint8), rng.integers(0, info.classes, size, dtype=np.int32)
