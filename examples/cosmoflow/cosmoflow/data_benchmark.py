"""Benchmark of the input: its speed, and the share of time that training waits for it."""

from __future__ import annotations

import statistics
import time

import keras
import numpy as np
from convoy import distributed
from convoy.data.batches import Batch, ResumableDataset
from convoy.progress_bar import Output

from cosmoflow.input import Input
from cosmoflow.volume_batches import VolumeBatches
from cosmoflow.volume_files import VolumeFiles

EPOCHS = 10
TABLE_HEAD = "Epoch, Bandwidth(GB/s), Samples/Second"
ROUNDS = 3
# The steps of a round: enough that batches prepared before it do not matter much.
STEPS = 64


def measure_input(data: Input, output: Output) -> None:
    """Read the training data without training, and print the speed."""
    output.line(TABLE_HEAD)
    sample_bytes = int(np.prod(data.train.job.shape[1:])) * data.train.job.dtype.itemsize
    rates = []
    for epoch in range(EPOCHS):
        start, samples = time.perf_counter(), 0
        for number in filter(data.is_local, range(data.train.num_batches)):
            samples += len(data.train[number][0])
        data.train.on_epoch_end()
        rate = float(sum(distributed.from_all(samples / (time.perf_counter() - start))))
        rates.append(rate)
        output.line(f"{epoch + 1}, {rate * sample_bytes / 1e9:.4f}, {rate:.3f}")
    files = data.splits.train
    if isinstance(files, VolumeFiles):
        rate = statistics.median(rates)
        stored = files.stored_bytes / len(files)
        output.line(
            f"Files: {rate * stored / 1e6:.1f} MB/s of {stored / 1e6:.3f} MB a sample, "
            f"{rate * sample_bytes / 2 / 1e6:.1f} MB/s of 16-bit volumes; the median of {EPOCHS} "
            "epochs"
        )


def measure_waiting(model: keras.Model, data: Input, output: Output) -> None:
    """Train in turns on the input and on volumes in memory, and print the difference."""
    batch = data.plan.batch
    updates = max(1, min(STEPS, data.plan.steps_per_epoch) // batch.gradient_accumulation)
    count = updates * batch.gradient_accumulation * batch.replicas
    sources = {
        "input": _FirstBatches(data.train, count),
        "memory": _BatchesInMemory(data.train, count, batch.replicas),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    for turn in range(ROUNDS + 1):
        for name, batches in sources.items():
            start = time.perf_counter()
            model.fit(batches, shuffle=False, verbose=0)
            if turn:  # the first turn compiles
                seconds[name].append(time.perf_counter() - start)
    samples = count * batch.micro_batch
    speed = {name: samples / statistics.median(took) for name, took in seconds.items()}
    waits = [1 - m / i for i, m in zip(seconds["input"], seconds["memory"], strict=True)]
    output.line(
        f"Training: {speed['input']:.2f} samples per second from the input, "
        f"{speed['memory']:.2f} from memory; the input costs "
        f"{statistics.median(waits):.1%} of the time ({min(waits):.1%} to {max(waits):.1%} in "
        f"{ROUNDS} rounds of {samples} samples)"
    )


class _FirstBatches(ResumableDataset):
    """The first batches of each epoch."""

    def __init__(self, batches: VolumeBatches, count: int) -> None:
        super().__init__(count)
        self.batches = batches

    def __getitem__(self, number: int) -> Batch:
        return self.batches[number]

    def on_epoch_end(self) -> None:
        self.batches.on_epoch_end()


class _BatchesInMemory(ResumableDataset):
    """Some batches that are kept in memory and repeated."""

    def __init__(self, batches: VolumeBatches, count: int, kept: int) -> None:
        super().__init__(count)
        self.kept = [batches[number] for number in range(min(count, kept))]

    def __getitem__(self, number: int) -> Batch:
        return self.kept[number % len(self.kept)]
