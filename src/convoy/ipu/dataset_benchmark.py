"""Benchmarks of input data, without a program that reads it."""

import itertools
import json
import time
from collections.abc import Iterable

import jax
import numpy as np
from convoy.arguments import whole_number
from convoy.estimator.input import iterate
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
from convoy.types import PyTree


def dataset_benchmark(
    dataset: Iterable[PyTree],
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> str:
    """Measure the throughput of a dataset.

    Args:
        dataset: an iterable of arrays, or of tuples or dicts of arrays, that is long enough.
        number_of_epochs: number of measurements.
        elements_per_epochs: elements per measurement.
        print_stats: whether to print a line for each measurement.
        apply_debug_options: no effect.
        do_memcpy: whether to copy every element, as a transfer to a device would.

    Returns:
        JSON: `epochs`, each with `elements_processed`, `total_bytes_processed`, `time_elapsed` in
        seconds, `elements_per_second` and `bandwidth` in GB/s.

    Raises:
        ValueError: if a number is below 1.
        RuntimeError: if the dataset ends early.
    """
    whole_number("number_of_epochs", number_of_epochs, "a positive whole number")
    whole_number("elements_per_epochs", elements_per_epochs, "a positive whole number")
    elements = iterate(dataset)
    epochs = []
    for epoch in range(1, number_of_epochs + 1):
        began, taken, size = time.perf_counter(), 0, 0
        for element in itertools.islice(elements, elements_per_epochs):
            arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(element)]
            if do_memcpy:
                arrays = [array.copy() for array in arrays]
            size += sum(array.nbytes for array in arrays)
            taken += 1
        seconds = time.perf_counter() - began
        if taken < elements_per_epochs:
            raise RuntimeError(
                f"The dataset ended after {taken} of the {elements_per_epochs} elements of epoch "
                f"{epoch}. Repeat it."
            )
        speed, bandwidth = taken / seconds, size / seconds / 1e9
        epochs.append(
            {
                "elements_processed": taken,
                "total_bytes_processed": size,
                "time_elapsed": seconds,
                "elements_per_second": speed,
                "bandwidth": bandwidth,
            }
        )
        if print_stats:
            totals = f"{taken} elements in {seconds:.3f} s"
            print(f"Epoch {epoch}: {totals}, {speed:.1f} elements/s, {bandwidth:.3f} GB/s")
    return json.dumps({"epochs": epochs})


def infeed_benchmark(
    infeed_queue: IPUInfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> str:
    """Measure the throughput of an infeed queue, as `dataset_benchmark` does."""
    elements = (infeed_queue.take(1) for _ in itertools.count())
    return dataset_benchmark(
        elements, number_of_epochs, elements_per_epochs, print_stats, do_memcpy=do_memcpy
    )
