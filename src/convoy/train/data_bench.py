"""`convoy data bench`: how many images a second the host gets ready."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from convoy.data.batches import Positions
from convoy.train.command_line import make_parser as make_training_parser
from convoy.train.command_line import parse
from convoy.train.input import open_images, training_input
from convoy.train.run_settings import make_plan
from convoy_command.parser import Parser, stop

SECONDS = 10.0
# The first ones wait for the workers to start.
WARM_UP = 4
PROGRAM = "convoy data bench"


def make_parser() -> Parser:
    return make_training_parser(PROGRAM)


def main(words: Sequence[str]) -> int:
    """Make batches as `convoy train` would with the same flags, and train nothing."""
    try:
        plan = make_plan(parse(words, PROGRAM))
        images = open_images(plan.options, plan.info, plan.seed)
        plan = make_plan(plan.options, images.train_samples)
        with training_input(plan, images) as data:
            if not isinstance(data["x"], Positions):
                print("These images are moved to the device once, and need nothing of the host.")
                return 0
            done, seconds = _measure(_batches(data["x"]), plan.batch.micro_batch)
    except ValueError as error:
        stop(str(error), PROGRAM)
    cores = len(os.sched_getaffinity(0))
    print(f"Throughput = {done / seconds:.1f} examples/sec")
    print(
        f"{done} images in {seconds:.1f} s; {done / seconds / cores:.1f} for each of {cores} cores"
    )
    return 0


def _batches(dataset: Any) -> Iterator[Any]:
    while True:
        for number in range(dataset.num_batches):
            yield dataset[number]
        dataset.on_epoch_end()


def _measure(batches: Iterator[Any], size: int) -> tuple[int, float]:
    for _ in itertools.islice(batches, WARM_UP):
        pass
    began, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < SECONDS:
        next(batches)
        done += size
    return done, elapsed
