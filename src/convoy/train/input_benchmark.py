"""Throughput of the input pipeline of `convoy train`, without training."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

from convoy.data.batches import ResumableDataset
from convoy.train.flags import Options
from convoy.train.input import open_images, training_input
from convoy.train.run_settings import make_run_settings

SECONDS = 10.0
# The first batches wait for the worker processes to start.
WARM_UP = 4


def measure_input(options: Options) -> tuple[int, float] | None:
    """Prepare training batches for some seconds.

    Returns:
        The number of images and the time in seconds; `None` if all images are transferred to the
        device once, so that the host prepares nothing.

    Raises:
        ValueError: if options contradict each other, or the dataset cannot be read.
    """
    settings = make_run_settings(options)
    images = open_images(settings.options, settings.info, settings.seed)
    settings = make_run_settings(settings.options, images.train_samples)
    with training_input(settings, images) as data:
        if not isinstance(data["x"], ResumableDataset):
            return None
        return _measure(_batches(data["x"]), settings.batch.micro_batch)


def _batches(dataset: Any) -> Iterator[Any]:
    while True:
        for number in range(dataset.num_batches):
            yield dataset[number]
        dataset.on_epoch_end()


def _measure(batches: Iterator[Any], batch_size: int) -> tuple[int, float]:
    for _ in itertools.islice(batches, WARM_UP):
        pass
    began, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < SECONDS:
        next(batches)
        done += batch_size
    return done, elapsed
