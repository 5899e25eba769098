"""The input of a run: images in memory, or batches that are read from files during training."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from convoy.arguments import require_package
from convoy.cpu import threads
from convoy.data.augment import Output, Transformation
from convoy.data.batches import AlternatingFlip, Batches, Order, SequentialOrder
from convoy.data.catalog import DatasetInfo, Split, load, synthetic_split
from convoy.data.image_batches import BatchRequest, ImageBatches, ImageBatchJob
from convoy.data.image_files import ImageFiles, find_images
from convoy.data.image_folder import FOLDER, find_image_folder
from convoy.train.flags import Options
from convoy.train.messages import notify
from convoy.train.run_settings import RunSettings
from convoy.units import format_count

# Maximum number of images that are passed to `adapt` of layers.
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


def _count(split: Split | ImageFiles) -> int:
    return len(split[1]) if isinstance(split, tuple) else len(split)


def open_images(options: Options, info: DatasetInfo, seed: int) -> Images:
    """Read or generate the dataset.

    Raises:
        ValueError: if it does not exist, or is damaged.
    """
    if options.synthetic_data == "host":
        return Images(
            synthetic_split(info, info.train, seed), synthetic_split(info, info.test, seed)
        )
    if options.synthetic_data == "device":
        rng = np.random.default_rng(seed)
        return Images(*(_placeholders(info, info.size(part), rng) for part in ("train", "test")))
    if info.name in ("imagenet", FOLDER):
        return _open_files(options)
    try:
        data = load(info.name, options.dataset_path)
    except ValueError as error:
        raise ValueError(f"{error} --synthetic-data host needs no data.") from None
    return Images(data.train, data.test)


def _open_files(options: Options) -> Images:
    require_package("cv2", "Decoding images", "opencv-python-headless", "images")
    root, empty = Path(options.dataset_path), (np.zeros(0), np.zeros(0))
    if options.dataset == FOLDER:
        images = Images(*find_image_folder(root, options.validation_split, options.classes))
    else:
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
    augments = options.augment and options.synthetic_data is None
    flips_at_random = (
        augments and options.flip == "random" and not options.accelerator_side_preprocess
    )
    # Images in files are flipped when they are decoded.
    transformation = _augmentation(
        settings, flip=flips_at_random and isinstance(images.train, tuple)
    )
    order = Order(
        images.train_samples,
        batch.micro_batch,
        batches_per_epoch=events.updates_per_epoch * batch.micro_batches_per_update,
        shuffle=options.shuffle,
        seed=settings.seed,
    )
    alternates = augments and settings.info.flip and options.flip == "alternating"
    flips = AlternatingFlip(order) if alternates else None
    # Epochs of `fit` may be longer than those of the data.
    num_batches = events.keras_epoch * batch.micro_batches_per_update
    if not isinstance(images.train, tuple):
        job = ImageBatchJob(
            images.train,
            batch.micro_batch,
            transformation,
            training=options.augment,
            flip=flips_at_random,
            on_damage=options.damaged_images,
        )
        with _image_batches(settings, job, order, num_batches, flips) as batches:
            yield {"x": batches, "shuffle": False}
        return
    x, y = images.train
    # Otherwise Keras would run a weight update with an incomplete batch.
    divides = events.keras_epoch * batch.global_batch == len(x)
    changes = transformation.is_random or flips or options.synthetic_data == "host"
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
    size, transformation = settings.validation_batch, _plain_transformation(settings)
    order = SequentialOrder(images.test_samples, size)
    if not isinstance(images.test, tuple):
        job = _centre_job(settings, images.test, size)
        with _image_batches(settings, job, order, order.num_batches) as batches:
            yield {"x": batches}
        return
    x, y = images.test
    if settings.options.synthetic_data == "host":
        yield {"x": Batches(x, y, order, order.num_batches, transformation)}
    else:
        yield {"x": transformation.convert(x), "y": y, "batch_size": size}


def some_images(settings: RunSettings, images: Images) -> np.ndarray:
    """Return evenly spaced training images, in the format that is transferred to the device."""
    height, width, _ = settings.info.shape
    count = min(images.train_samples, max(1, MAX_PIXELS // (height * width)))
    chosen = np.linspace(0, images.train_samples - 1, count).astype(int)
    if isinstance(images.train, tuple):
        return _plain_transformation(settings).convert(images.train[0][chosen])
    job = _centre_job(settings, images.train, count)
    found = np.empty(job.shape, job.dtype)
    job.run(BatchRequest(chosen, (0,)), found)
    return found


def _augmentation(settings: RunSettings, *, flip: bool) -> Transformation:
    """Return the preprocessing of training images on the host."""
    info, options = settings.info, settings.options
    is_real = options.synthetic_data is None
    return Transformation(
        info,
        _output(settings),
        flip=flip and info.flip,
        crop=options.augment and is_real and bool(info.crop_padding),
        border=options.crop_border,
        rand_augment=options.rand_augment if is_real else 0.0,
        mixup=options.mixup,
        cutmix=options.cutmix,
    )


def _plain_transformation(settings: RunSettings) -> Transformation:
    """Return the preprocessing of images that are not augmented."""
    return Transformation(settings.info, _output(settings))


def _centre_job(settings: RunSettings, files: ImageFiles, size: int) -> ImageBatchJob:
    """Return the job that decodes the centres of images."""
    return ImageBatchJob(
        files,
        size,
        _plain_transformation(settings),
        training=False,
        on_damage=settings.options.damaged_images,
    )


@contextlib.contextmanager
def _image_batches(
    settings: RunSettings,
    job: ImageBatchJob,
    order: Order | SequentialOrder,
    num_batches: int,
    flips: AlternatingFlip | None = None,
) -> Iterator[ImageBatches]:
    """Yield batches that worker processes decode, and print how many images were damaged."""
    limit = settings.options.pipeline_num_parallel
    workers = threads.cores() if limit is None else min(limit, threads.cores())
    batches = ImageBatches(
        job, order, num_batches, workers, lambda name: notify(f"skipped {name}"), flips
    )
    try:
        yield batches
    finally:
        batches.close()
        if batches.damaged:
            skipped = format_count(len(batches.damaged), "damaged image")
            notify(f"{skipped} skipped; others were used instead.")


def _output(settings: RunSettings) -> Output:
    """Return the format in which images are transferred to the device."""
    options = settings.options
    if options.synthetic_data == "device":
        return "unchanged"
    if options.eight_bit_transfer:
        return "bytes"
    return "numbers" if options.accelerator_side_preprocess else "normalised"


def _placeholders(info: DatasetInfo, size: int, rng: np.random.Generator) -> Split:
    """Return one byte per image that the device generates, as a placeholder, and random labels."""
    return np.zeros((size, 1), np.uint8), rng.integers(0, info.classes, size, dtype=np.int32)
