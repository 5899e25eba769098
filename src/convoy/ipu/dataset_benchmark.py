"""How fast data comes, without a program that takes it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue


def dataset_benchmark(
    dataset: Iterable[Any],
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> str:
    """Go through a data set and take the time.

    Args:
        dataset: yields arrays, tuples or dicts of them; without end, or long enough.
        number_of_epochs: how often the time is taken.
        elements_per_epochs: elements each time.
        print_stats: whether a line is printed for each.
        apply_debug_options: has no effect, as the data set is taken as it is.
        do_memcpy: whether every element is copied, as a device would.

    Returns:
        JSON: `epochs`, each with `elements_processed`, `total_bytes_processed`, `time_elapsed` in
        seconds, `elements_per_second` and `bandwidth` in GB/s.

    Raises:
        ValueError: if a number is below 1.
        RuntimeError: if the data set ends early.
    """
    del apply_debug_options
    numpy = getattr(dataset, "as_numpy_iterator", None)
    elements = iter(numpy() if numpy else dataset)
    return _measure(elements, number_of_epochs, elements_per_epochs, print_stats, do_memcpy)


def infeed_benchmark(
    infeed_queue: IPUInfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> str:
    """Go through the data of an infeed queue and take the time, as `dataset_benchmark` does."""
    elements = (infeed_queue.take(1) for _ in itertools.count())
    return _measure(elements, number_of_epochs, elements_per_epochs, print_stats, do_memcpy)


def _measure(
    elements: Iterator[Any], epochs: int, count: int, print_stats: bool, do_memcpy: bool
) -> str:
    for name, value in (("number_of_epochs", epochs), ("elements_per_epochs", count)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}={value!r} is not a number from 1.")
    found = []
    for epoch in range(epochs):
        began, taken, size = time.perf_counter(), 0, 0
        for element in itertools.islice(elements, count):
            arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(element)]
            if do_memcpy:
                arrays = [array.copy() for array in arrays]
            size += sum(array.nbytes for array in arrays)
            taken += 1
        seconds = time.perf_counter() - began
        if taken < count:
            raise RuntimeError(
                f"The data set ended after {taken} of the {count} elements of epoch {epoch + 1}. "
                "Repeat it."
            )
        figures = {
            "elements_processed": taken,
            "total_bytes_processed": size,
            "time_elapsed": seconds,
            "elements_per_second": taken / seconds,
            "bandwidth": size / seconds / 1e9,
        }
        found.append(figures)
        if print_stats:
            print(
                f"Epoch {epoch + 1}: {taken} elements in {seconds:.3f} s, "
                f"{figures['elements_per_second']:.1f} elements/s, "
                f"{figures['bandwidth']:.3f} GB/s"
            )
    return json.dumps({"epochs": found})
