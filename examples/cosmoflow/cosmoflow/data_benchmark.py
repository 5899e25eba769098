"""How fast the input is, and how much of the time training would wait for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import keras
import numpy as np
from convoy import distributed
from convoy.data.batches import Batch
from convoy.progress_bar import Output

from cosmoflow.input import Input
from cosmoflow.volume_batches import VolumeBatches
from cosmoflow.volume_files import VolumeFiles

EPOCHS = 10
HEAD = "Epoch, Bandwidth(GB/s), Samples/Second"
ROUNDS = 3
# Steps of a round; enough that what was made ahead does not count for much.
STEPS = 64


def measure_input(data: Input, output: Output) -> None:
    """Go through the training data without training, and print how fast that was."""
    output.line(HEAD)
    sample = int(np.prod(data.train.make.shape[1:])) * data.train.make.dtype.itemsize
    rates = []
    for epoch in range(EPOCHS):
        began, samples = time.perf_counter(), 0
        for volumes, _ in _own(data):
            samples += len(volumes)
        data.train.on_epoch_end()
        rate = _together(samples / (time.perf_counter() - began))
        rates.append(rate)
        output.line(f"{epoch + 1}, {rate * sample / 1e9:.4f}, {rate:.3f}")
    files = data.splits.train
    if isinstance(files, VolumeFiles):
        rate = statistics.median(rates)
        stored = files.stored_bytes / len(files)
        output.line(
            f"Files: {rate * stored / 1e6:.1f} MB/s of {stored / 1e6:.3f} MB a sample, "
            f"{rate * sample / 2 / 1e6:.1f} MB/s of 16-bit volumes; the median of {EPOCHS} epochs"
        )


def measure_waiting(model: keras.Model, data: Input, output: Output) -> None:
    """Train on the input and on volumes in memory, taking turns, and print how they compare."""
    step = data.plan.batch.replicas
    steps = min(STEPS, data.plan.steps_per_epoch) // data.plan.batch.accumulation
    count = max(1, steps) * data.plan.batch.accumulation * step
    kinds = {"input": _First(data.train, count), "memory": _InMemory(data.train, count, step)}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(ROUNDS + 1):
        for kind, batches in kinds.items():
            began = time.perf_counter()
            model.fit(batches, shuffle=False, verbose=0)
            if turn:  # the first compiles
                seconds[kind].append(time.perf_counter() - began)
    samples = count * data.plan.batch.micro_batch
    speed = {kind: samples / statistics.median(took) for kind, took in seconds.items()}
    waits = [1 - m / i for i, m in zip(seconds["input"], seconds["memory"], strict=True)]
    output.line(
        f"Training: {speed['input']:.2f} samples per second from the input, "
        f"{speed['memory']:.2f} from memory; the input costs "
        f"{statistics.median(waits):.1%} of the time ({min(waits):.1%} to {max(waits):.1%} in "
        f"{ROUNDS} rounds of {samples} samples)"
    )


def _own(data: Input) -> Iterator[Batch]:
    for number in range(data.train.num_batches):
        if data.is_own(number):
            yield data.train[number]


def _together(rate: float) -> float:
    """Add up what all processes do."""
    return float(sum(distributed.from_all(rate)))


class _First(keras.utils.PyDataset):
    """The first batches of every epoch; whoever asks again gets those of the next."""

    def __init__(self, batches: VolumeBatches, count: int) -> None:
        super().__init__()
        self.batches = batches
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Batch:
        return self.batches[number]

    def on_epoch_end(self) -> None:
        self.batches.on_epoch_end()


class _InMemory(keras.utils.PyDataset):
    """As many batches, of which a few are kept in memory and come again and again."""

    def __init__(self, batches: VolumeBatches, count: int, kept: int) -> None:
        super().__init__()
        self.count = count
        self.kept = [batches[number] for number in range(min(count, kept))]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Batch:
        return self.kept[number % len(self.kept)]
