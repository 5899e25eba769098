"""Batches of images in memory, each of which follows from seed, epoch and index alone."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
from convoy.data.augment import flip

Batch = tuple[np.ndarray, np.ndarray]
Transform = Callable[[np.ndarray, np.ndarray, np.random.Generator], Batch]
Flips = Callable[[int], np.ndarray]


class Order:
    """Which samples are in which batch of which epoch. All batches are whole.

    An epoch that takes more batches than the data has goes through it again, in another order.

    Args:
        samples: how many there are.
        size: samples in a batch.
        batches_per_epoch: how many make an epoch.
        shuffle: whether each pass has an order of its own.
        seed: decides orders, together with epoch and pass.

    Raises:
        ValueError: if the data does not fill a batch.
    """

    def __init__(
        self, samples: int, size: int, *, batches_per_epoch: int, shuffle: bool, seed: int
    ) -> None:
        self.samples = samples
        self.size = size
        self.batches_per_epoch = batches_per_epoch
        self.shuffle = shuffle
        self.seed = seed
        self._whole = samples // size
        if not self._whole:
            raise ValueError(f"{samples} samples do not fill a batch of {size}.")
        # The order of one pass is drawn once, and kept until another one is asked for.
        self._drawn: tuple[tuple[int, int], np.ndarray] | None = None

    def chosen(self, position: int) -> np.ndarray:
        """Return the samples of a batch, counted from the run's first."""
        epoch, number = divmod(position, self.batches_per_epoch)
        run, place = divmod(number, self._whole)
        return self._pass(epoch, run)[place * self.size : (place + 1) * self.size]

    def pass_of(self, position: int) -> int:
        """Return how often the data was gone through before a batch."""
        epoch, number = divmod(position, self.batches_per_epoch)
        return epoch * -(-self.batches_per_epoch // self._whole) + number // self._whole

    def seed_of(self, position: int) -> tuple[int, ...]:
        """Return the seed of what chance does to a batch."""
        epoch, number = divmod(position, self.batches_per_epoch)
        return self.seed, epoch, number, 1

    def _pass(self, epoch: int, run: int) -> np.ndarray:
        if self._drawn is None or self._drawn[0] != (epoch, run):
            order = np.arange(self.samples)
            if self.shuffle:
                order = np.random.default_rng((self.seed, epoch, run)).permutation(self.samples)
            self._drawn = (epoch, run), order
        return self._drawn[1]


class InOrder:
    """All samples, one after the other; the last batch may be smaller."""

    def __init__(self, samples: int, size: int) -> None:
        self.samples = samples
        self.size = size

    @property
    def num_batches(self) -> int:
        return -(-self.samples // self.size)

    def chosen(self, position: int) -> np.ndarray:
        first = position % self.num_batches * self.size
        return np.arange(first, min(first + self.size, self.samples))

    def seed_of(self, position: int) -> tuple[int, ...]:
        del position
        return (0,)


class Positions(keras.utils.PyDataset):
    """A data set that knows which batch of the whole run it is asked for.

    It counts epochs by itself, and tells the count to checkpoints: so a run that goes on reads what
    it would have read.

    Args:
        num_batches: of what is an epoch to Keras.
    """

    def __init__(self, num_batches: int) -> None:
        super().__init__()
        self._num_batches = num_batches
        self._epoch = 0

    @property
    def num_batches(self) -> int:
        return self._num_batches

    def position(self, number: int) -> int:
        """Return where in the run a batch of this epoch is."""
        return self._epoch * self._num_batches + number

    def on_epoch_end(self) -> None:
        self._epoch += 1

    def get_state(self) -> int:
        return self._epoch

    def set_state(self, state: int) -> None:
        self._epoch = state


class Batches(Positions):
    """Batches of images in memory.

    Args:
        images: all of them.
        labels: one for each.
        order: which of them come when.
        num_batches: of what is an epoch to Keras.
        transform: is given images, labels and a generator of the batch's own.
        flips: which images are mirrored before that, by the batch; none if it is `None`.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        order: Order,
        num_batches: int,
        transform: Transform,
        flips: Flips | None = None,
    ) -> None:
        super().__init__(num_batches)
        self.images = images
        self.labels = labels
        self.order = order
        self.transform = transform
        self.flips = flips

    def __getitem__(self, number: int) -> Batch:
        position = self.position(number)
        chosen = self.order.chosen(position)
        chance = np.random.default_rng(self.order.seed_of(position))
        images = self.images[chosen]
        if self.flips is not None:
            images = flip(images, self.flips(position))
        return self.transform(images, self.labels[chosen], chance)
