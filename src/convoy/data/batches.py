"""Batches of images in memory, in an order that depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

Batch = tuple[np.ndarray, np.ndarray]
Transform = Callable[[np.ndarray, np.ndarray, np.random.Generator], Batch]


def endless_batches(
    images: np.ndarray,
    labels: np.ndarray,
    size: int,
    *,
    batches_per_epoch: int,
    shuffle: bool,
    seed: int,
    transform: Transform,
) -> Iterator[Batch]:
    """Yield whole batches, epoch after epoch.

    An epoch that takes more batches than the data has goes through it again, in another order.

    Args:
        images: all of them.
        labels: one for each.
        size: samples in a batch.
        batches_per_epoch: how many make an epoch.
        shuffle: whether each pass has an order of its own.
        seed: decides orders and transformations, together with the epoch and the batch.
        transform: is given images, labels and a generator of the batch's own.

    Raises:
        ValueError: if the data does not fill a batch.
    """
    whole = len(images) // size
    if not whole:
        raise ValueError(f"{len(images)} samples do not fill a batch of {size}.")
    epoch = 0
    while True:
        order = np.arange(len(images))
        for number in range(batches_per_epoch):
            run, place = divmod(number, whole)
            if shuffle and place == 0:
                order = np.random.default_rng((seed, epoch, run)).permutation(len(images))
            chosen = order[place * size : (place + 1) * size]
            rng = np.random.default_rng((seed, epoch, number, 1))
            yield transform(images[chosen], labels[chosen], rng)
        epoch += 1
