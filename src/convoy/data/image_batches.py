"""Batches of compressed images, which worker processes read, decode and change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from convoy.data import jpeg
from convoy.data.batches import Batch, Flips, Positions
from convoy.data.crops import centre_crop, inception_crop
from convoy.data.image_files import ImageFiles
from convoy.data.prefetch import Ahead
from convoy.data.records import DamagedDataError
from convoy.data.transform import Transformation

OnDamage = Literal["skip", "stop"]
# So many damaged images in a row are no accident.
MOST_DAMAGED = 100


class Asked(NamedTuple):
    """A batch to make: which images, the seed of what chance does to them, which are mirrored."""

    indices: np.ndarray
    seed: tuple[int, ...]
    mirrored: np.ndarray | None = None


class Made(NamedTuple):
    """What a batch has beside its images."""

    labels: np.ndarray
    damaged: list[str]


@dataclass(frozen=True)
class MakeBatch:
    """Makes a batch of images; in a process of its own, or in this one.

    Attributes:
        files: where the images are.
        size: images in a batch.
        transformation: of the batch; mirroring is not left to it.
        training: whether a random part of each image is shown, else the middle.
        mirror: whether that part is mirrored at random, where it is not said which are.
        on_damage: whether another image takes the place of one that cannot be read, or that is an
            error.
    """

    files: ImageFiles
    size: int
    transformation: Transformation
    training: bool
    mirror: bool = False
    on_damage: OnDamage = "skip"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.transformation.info.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.transformation.dtype

    def run(self, task: Asked, out: np.ndarray) -> Made:
        """Fill an array with images.

        Raises:
            DamagedDataError: if one is damaged, and that is to be an error.
        """
        rng = np.random.default_rng(task.seed)
        count = len(task.indices)
        # Bytes are decoded to where they are wanted.
        in_place = self.dtype == np.uint8
        images = out[:count] if in_place else np.empty((count, *self.shape[1:]), np.uint8)
        labels, damaged = np.empty(count, np.int32), list[str]()
        mirrored = np.zeros(count, bool) if task.mirrored is None else task.mirrored
        for place, (index, turned) in enumerate(zip(task.indices, mirrored, strict=True)):
            labels[place] = self._show(int(index), bool(turned), images[place], rng, damaged)
        changed, labels = self.transformation(images, labels, rng)
        if changed is not images or not in_place:
            out[:count] = changed
        return Made(labels, damaged)

    def _show(
        self,
        index: int,
        turned: bool,
        out: np.ndarray,
        rng: np.random.Generator,
        damaged: list[str],
    ) -> int:
        """Put an image, or the next one that is whole, into an array, and return its label."""
        for step in range(MOST_DAMAGED):
            near = (index + step) % len(self.files)
            try:
                return self._decode(near, turned, out, rng)
            except DamagedDataError as error:
                said = f"{self.files.name(near)}: {error}"
                if self.on_damage == "stop":
                    raise DamagedDataError(f"{said}.") from None
                damaged.append(said)
        raise DamagedDataError(
            f"{self.files.name(index)} and the {MOST_DAMAGED - 1} images after it are damaged."
        )

    def _decode(self, index: int, turned: bool, out: np.ndarray, rng: np.random.Generator) -> int:
        sample = self.files.read(index)
        classes = self.transformation.info.classes
        if not 0 <= sample.label < classes:
            raise DamagedDataError(f"its label {sample.label} is not one of {classes} classes")
        height, width = jpeg.size_of(sample.data)
        if not self.training:
            jpeg.decode_part(sample.data, centre_crop(height, width), out)
            return sample.label
        box = inception_crop(height, width, rng, sample.objects)
        mirrored = turned or (self.mirror and rng.random() < 0.5)
        jpeg.decode_part(sample.data, box, out, mirrored=mirrored)
        return sample.label


class Order(Protocol):
    """Which images are in which batch of the run."""

    def chosen(self, position: int) -> np.ndarray: ...

    def seed_of(self, position: int) -> tuple[int, ...]: ...


class ImageBatches(Positions):
    """Batches of compressed images.

    Args:
        make: what makes a batch.
        order: which images are in it.
        num_batches: of what is an epoch to Keras.
        workers: processes that make batches ahead; 0 makes each where and when it is asked for.
        say: is called once for each image that cannot be read.
        flips: which images are mirrored, by the batch.
    """

    def __init__(
        self,
        make: MakeBatch,
        order: Order,
        num_batches: int,
        workers: int,
        say: Callable[[str], None] = lambda _: None,
        flips: Flips | None = None,
    ) -> None:
        super().__init__(num_batches)
        self.make = make
        self.order = order
        self.say = say
        self.flips = flips
        self.damaged = dict.fromkeys(make.files.damaged)
        """What could not be read, each named once."""
        for name in self.damaged:
            say(name)
        self._ahead = Ahead(make, self._asked, workers)

    def __getitem__(self, number: int) -> Batch:
        images, made = self._ahead.take(self.position(number))
        for name in made.damaged:
            if name not in self.damaged:
                self.damaged[name] = None
                self.say(name)
        return images[: len(made.labels)], made.labels

    def close(self) -> None:
        """End the worker processes."""
        self._ahead.close()

    def _asked(self, position: int) -> Asked:
        mirrored = None if self.flips is None else self.flips(position)
        return Asked(self.order.chosen(position), self.order.seed_of(position), mirrored)
