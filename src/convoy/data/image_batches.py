"""Batches of compressed images, which worker processes read, decode and augment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from convoy.data import jpeg
from convoy.data.augment import Batch, Transformation, centre_crop, inception_crop
from convoy.data.batches import Flips, Order, ResumableDataset, SequentialOrder
from convoy.data.image_files import ImageFiles
from convoy.data.records import DamagedDataError
from convoy.data.worker_pool import Prefetcher

OnDamage = Literal["skip", "stop"]
# More damaged images in a row than this point to a damaged file.
MAX_DAMAGED = 100


class BatchRequest(NamedTuple):
    """A batch to be made.

    Attributes:
        indices: its images.
        seed: seed of its augmentation.
        flipped: images that are flipped; `None` chooses them at random.
    """

    indices: np.ndarray
    seed: tuple[int, ...]
    flipped: np.ndarray | None = None


@dataclass(frozen=True)
class ImageBatchJob:
    """Makes batches of images, in a worker process or in this one.

    Attributes:
        files: source of the images.
        size: batch size.
        transformation: augmentation of the batch, without flips.
        training: whether a random crop of each image is taken, else its centre.
        flip: whether crops are flipped at random, if the request does not choose them.
        on_damage: whether a damaged image is replaced by the next one or is an error.
    """

    files: ImageFiles
    size: int
    transformation: Transformation
    training: bool
    flip: bool = False
    on_damage: OnDamage = "skip"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.transformation.info.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.transformation.dtype

    def run(self, task: BatchRequest, out: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Fill an array with images, and return their labels and the names of damaged images.

        Raises:
            DamagedDataError: if an image is damaged and `on_damage` is `"stop"`.
        """
        rng = np.random.default_rng(task.seed)
        count = len(task.indices)
        # Bytes are decoded into the result, without a copy.
        in_place = self.dtype == np.uint8
        images = out[:count] if in_place else np.empty((count, *self.shape[1:]), np.uint8)
        labels, damaged = np.empty(count, np.int32), list[str]()
        flipped = np.zeros(count, bool) if task.flipped is None else task.flipped
        for place, (index, flip) in enumerate(zip(task.indices, flipped, strict=True)):
            labels[place] = self._read(int(index), bool(flip), images[place], rng, damaged)
        augmented, labels = self.transformation(images, labels, rng)
        if augmented is not images or not in_place:
            out[:count] = augmented
        return labels, damaged

    def _read(
        self, index: int, flip: bool, out: np.ndarray, rng: np.random.Generator, damaged: list[str]
    ) -> int:
        """Decode an image, or the next undamaged one, into an array, and return its label."""
        for step in range(MAX_DAMAGED):
            near = (index + step) % len(self.files)
            try:
                return self._decode(near, flip, out, rng)
            except DamagedDataError as error:
                message = f"{self.files.name(near)}: {error}"
                if self.on_damage == "stop":
                    raise DamagedDataError(
                        f"{message}. Pass --damaged-images skip to leave it out."
                    ) from None
                damaged.append(message)
        raise DamagedDataError(
            f"{self.files.name(index)} and the {MAX_DAMAGED - 1} images after it are damaged. "
            "Restore the files from a copy."
        )

    def _decode(self, index: int, flip: bool, out: np.ndarray, rng: np.random.Generator) -> int:
        sample = self.files.read(index)
        classes = self.transformation.info.classes
        if not 0 <= sample.label < classes:
            raise DamagedDataError(f"its label {sample.label} is not one of {classes} classes")
        height, width = jpeg.size_of(sample.data)
        if not self.training:
            jpeg.decode_part(sample.data, centre_crop(height, width), out)
            return sample.label
        box = inception_crop(height, width, rng, sample.objects)
        flip = flip or (self.flip and rng.random() < 0.5)
        jpeg.decode_part(sample.data, box, out, flip=flip)
        return sample.label


class ImageBatches(ResumableDataset):
    """Batches of compressed images.

    Args:
        job: maker of the batches.
        order: order of the images.
        num_batches: number of batches in an epoch of Keras.
        workers: number of processes that make batches ahead; 0 makes each one when it is read.
        on_damaged: function that is called once with the name of each damaged image.
        flips: images that are flipped, by batch.
    """

    def __init__(
        self,
        job: ImageBatchJob,
        order: Order | SequentialOrder,
        num_batches: int,
        workers: int,
        on_damaged: Callable[[str], None] = lambda _: None,
        flips: Flips | None = None,
    ) -> None:
        super().__init__(num_batches)
        self.job = job
        self.order = order
        self.flips = flips
        self.damaged = dict.fromkeys(job.files.damaged)
        """Names of damaged images and files, each once."""
        self._on_damaged = on_damaged
        for name in self.damaged:
            on_damaged(name)
        self._prefetcher = Prefetcher(job, self._request, workers)

    def __getitem__(self, number: int) -> Batch:
        images, (labels, damaged) = self._prefetcher.take(self.position(number))
        for name in damaged:
            if name not in self.damaged:
                self.damaged[name] = None
                self._on_damaged(name)
        return images[: len(labels)], labels

    def close(self) -> None:
        """Terminate the worker processes."""
        self._prefetcher.close()

    def _request(self, position: int) -> BatchRequest:
        flipped = None if self.flips is None else self.flips(position)
        return BatchRequest(self.order.indices(position), self.order.seed_at(position), flipped)
