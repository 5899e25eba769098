"""Speedup of data parallelism and overhead of gradient accumulation.

    .venv/bin/python benchmarks/scaling.py

Each variant is a process that trains the same network. The processes take turns, round by round,
and sleep in between, so that noise of the machine affects all. With one thread per device, it
compares as many replicas as cores with one replica on one core, each with the same local batch; and
a weight update of 8 accumulated micro-batches with one large batch of the same samples, both on all
replicas. The replicas are also trained in one process per core, as `convoy launch` does.
Independent processes, measured at the same time, show the limit of the machine. Expected in 12
minutes on two cores: 2 replicas train at least 1.8x as many samples per second as 1, in two
processes 1.7x as many, and accumulation costs less than 5 %.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from convoy.launch.topology import Topology

Worker = tuple[BaseProcess, Connection]

CORES = sorted(os.sched_getaffinity(0))
ACCUMULATION = 8


@dataclass(frozen=True)
class Workload:
    """A network, its samples, and how many of them one replica takes at a time."""

    network: str
    shape: tuple[int, ...]
    outputs: int
    batch: int
    loss: str


WORKLOADS = {
    "resnet8": Workload("resnet8", (32, 32, 3), 10, 64, "sparse_categorical_crossentropy"),
    "cosmoflow": Workload("cosmoflow", (64, 64, 64, 4), 4, 4, "mse"),
}


@dataclass(frozen=True)
class Variant:
    """How the network is trained."""

    title: str
    cores: tuple[int, ...]
    replicas: int = 1
    accumulation: int = 1
    batches: int = 1  # of the workload's size, in the batch of one replica
    apart: bool = False  # a process for each core
    joined: bool = False  # that train one model


VARIANTS = {
    "one": Variant("1 replica, 1 core", (CORES[0],)),
    "all": Variant(f"{len(CORES)} replicas, {len(CORES)} cores", tuple(CORES), len(CORES)),
    "joined": Variant(
        f"{len(CORES)} replicas in {len(CORES)} processes", tuple(CORES), apart=True, joined=True
    ),
    "apart": Variant(f"{len(CORES)} separate processes", tuple(CORES), apart=True),
    "big": Variant("one big batch", tuple(CORES), len(CORES), batches=ACCUMULATION),
    "accumulated": Variant("accumulated", tuple(CORES), len(CORES), accumulation=ACCUMULATION),
}


def serve(
    connection: Connection,
    workload: Workload,
    variant: Variant,
    cores: tuple[int, ...],
    updates: int,
) -> None:
    """Train on request, and respond with the samples per second."""
    os.sched_setaffinity(0, cores)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import convoy
    import keras
    from benchmarks.peers import keras_models
    from benchmarks.random_samples import random_samples

    devices = None if variant.joined else variant.replicas
    strategy = convoy.Strategy(devices=devices, gradient_accumulation=variant.accumulation)
    with strategy.scope():
        model = getattr(keras_models, workload.network)()
        optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
        steps = updates * variant.accumulation
        model.compile(optimizer, workload.loss, steps_per_execution=steps)
    batch = workload.batch * variant.batches
    count = updates * batch * variant.accumulation * strategy.replicas
    x, y = random_samples(count, workload.shape, workload.outputs, workload.loss)

    def train() -> float:
        start = time.perf_counter()
        model.fit(x, y, batch_size=batch, verbose=0)
        # Processes that train one model have each done a part of it.
        return count / (time.perf_counter() - start) / convoy.distributed.count()

    train()
    connection.send("ready")
    while connection.recv():
        connection.send(train())


def start(workload: Workload, variant: Variant, updates: int) -> list[Worker]:
    """Start the processes of a variant, and wait until they have compiled."""
    context = multiprocessing.get_context("spawn")
    workers = []
    shares = [(core,) for core in variant.cores] if variant.apart else [variant.cores]
    tasks = Topology(len(shares), len(shares)).tasks([])
    for cores, task in zip(shares, tasks, strict=True):
        ours, theirs = context.Pipe()
        arguments = (theirs, workload, variant, cores, updates)
        process = context.Process(target=serve, args=arguments, daemon=True)
        with environment(task.environment if variant.joined else {}):
            process.start()
        workers.append((process, ours))
    for _, connection in workers:
        connection.recv()
    return workers


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables for what is started in the block."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def measure(workload: Workload, names: list[str], rounds: int, updates: int) -> dict[str, list]:
    """Have the variants take turns; return the samples per second of every round."""
    workers: dict[str, list[Worker]] = {}
    try:
        for name in names:
            # A single batch is trained `ACCUMULATION` times, for about the same duration.
            times = updates * (1 if name in ("accumulated", "big") else ACCUMULATION)
            workers[name] = start(workload, VARIANTS[name], times)
        rates: dict[str, list] = {name: [] for name in names}
        for _ in range(rounds):
            for name, processes in workers.items():
                for _, connection in processes:
                    connection.send(True)
                rates[name].append(sum(connection.recv() for _, connection in processes))
        return rates
    finally:
        all_workers = list(itertools.chain.from_iterable(workers.values()))
        for _, connection in all_workers:
            connection.send(False)
        # Processes that train one model wait for each other at the end, too.
        for process, _ in all_workers:
            process.join()


def ratio(rates: dict[str, list], over: str, under: str) -> str:
    values = [a / b for a, b in zip(rates[over], rates[under], strict=True)]
    return f"{statistics.median(values):.2f} [{min(values):.2f} to {max(values):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=4, help="big weight updates in a turn")
    options = parser.parse_args()
    for name in options.workloads:
        workload = WORKLOADS[name]
        print(f"{name}, batch {workload.batch}, {options.rounds} rounds", flush=True)
        rates = measure(
            workload, ["one", "all", "joined", "apart"], options.rounds, options.updates
        )
        for variant in ("all", "joined", "apart"):
            report(rates, variant, "one", "times the samples per second")
        rates = measure(workload, ["accumulated", "big"], options.rounds, options.updates)
        meaning = f"times the samples per second, {ACCUMULATION} micro-batches"
        report(rates, "accumulated", "big", meaning)


def report(rates: dict[str, list], over: str, under: str, meaning: str) -> None:
    titles = f"{VARIANTS[over].title} / {VARIANTS[under].title}"
    print(f"  {titles}: {ratio(rates, over, under)} {meaning}", flush=True)


if __name__ == "__main__":
    main()
