"""Predictions of the planner compared with measurements.

    .venv/bin/python benchmarks/planner.py

For ResNet-8, CosmoFlow and ResNet-50 on one and on two devices, it measures the costs of the
network as `convoy plan --measure` does, predicts the throughput of configurations, and trains each
of them, in turns. With two devices, each has one thread. Expected in 10 minutes on two quiet cores:
predicted throughput is within 15 % of the measured one, and the configuration that the planner
selects is the fastest measured one, or within 5 % of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

CORES = sorted(os.sched_getaffinity(0))[:2]
AIM, AIM_OF_CHOICE = 0.15, 0.05


@dataclass(frozen=True)
class Network:
    """A network of `benchmarks/peers`, and how much of it is trained.

    Attributes:
        make: its function there.
        shape: of a sample.
        outputs: how many; classes, unless the loss is "mse".
        micro_batch: samples of one.
        micro_batches: of a weight update, over all replicas.
        updates: in a turn.
        stages: whether it is trained in two stages, too.
    """

    make: str
    shape: tuple[int, ...]
    outputs: int
    micro_batch: int
    micro_batches: int
    updates: int
    loss: str = "sparse_categorical_crossentropy"
    stages: bool = True

    def configurations(self, devices: int) -> list[Any]:
        from convoy.plan.predict import ParallelConfiguration

        count = self.micro_batches
        if devices == 1:
            return [ParallelConfiguration(1, 1, self.micro_batch, count)]
        ways = [ParallelConfiguration(2, 1, self.micro_batch, count // 2)]
        if self.stages:
            ways.append(ParallelConfiguration(1, 2, self.micro_batch, count, "1f1b"))
        return ways


NETWORKS = {
    "ResNet-8": Network("resnet8", (32, 32, 3), 10, 64, 8, 8),
    "CosmoFlow": Network("cosmoflow", (64, 64, 64, 4), 4, 4, 8, 3, "mse"),
    "ResNet-50": Network("resnet50", (224, 224, 3), 1000, 8, 4, 1, stages=False),
}


class Trainer:
    """Trains a network by a configuration."""

    def __init__(
        self, network: Network, configuration: Any, stages: list[int], devices: Any
    ) -> None:
        import convoy
        import keras
        from benchmarks.peers import keras_models
        from benchmarks.random_samples import random_samples

        count = configuration.gradient_accumulation
        strategy = convoy.Strategy(devices=devices, gradient_accumulation=count)
        with strategy.scope():
            self.model = getattr(keras_models, network.make)()
            optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
            steps = network.updates * count
            self.model.compile(optimizer, network.loss, steps_per_execution=steps)
        if configuration.stages > 1:
            self.model.set_pipeline_stage_assignment(stages)
            self.model.set_pipelining_options(schedule=configuration.schedule)
        self.batch = network.micro_batch
        self.count = network.updates * configuration.global_batch
        self.x, self.y = random_samples(self.count, network.shape, network.outputs, network.loss)
        self.rate()

    def rate(self) -> float:
        """Train; return samples per second."""
        start = time.perf_counter()
        self.model.fit(self.x, self.y, batch_size=self.batch, verbose=0)
        return self.count / (time.perf_counter() - start)


def predictor(network: Network, devices: Any) -> Any:
    """Measure what a network costs, as `convoy plan --measure` does."""
    from benchmarks.peers import keras_models
    from convoy import devices as device_choice
    from convoy.pipeline.balance.layer_costs import transfer_seconds
    from convoy.plan import machine as machines
    from convoy.plan.machine import Machine
    from convoy.plan.predict import Predictor
    from convoy.plan.profile import estimate_profile, measure_profile

    model = getattr(keras_models, network.make)()
    estimated = estimate_profile(model, *machines.compute_speed(devices), "")
    profile = measure_profile(model, estimated, devices, largest=network.micro_batch)
    link = 1 / transfer_seconds(devices) if len(devices) > 1 else 1e9
    machine = Machine(
        devices=len(devices),
        per_host=len(devices),
        memory=device_choice.memory(devices),
        link=link,
        exchange=machines.exchange_speed(devices),
        update=machines.update_speed(devices),
    )
    return Predictor(profile, machine, slots=1)


def serve(connection: Connection, name: str, count: int) -> None:
    """Send the predictions; then train the requested configurations."""
    os.sched_setaffinity(0, CORES)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import convoy

    network = NETWORKS[name]
    devices = convoy.Strategy(devices=count).devices
    predicts = predictor(network, devices)
    predictions = [predicts.predict(one) for one in network.configurations(count)]
    trainers = []
    for found in predictions:
        calls = range(len(predicts.profile.names))
        stages = [sum(call >= cut for cut in found.cuts) for call in calls]
        trainers.append(Trainer(network, found.configuration, stages, devices))
    connection.send([(found.configuration, found.throughput) for found in predictions])
    while (number := connection.recv()) is not None:
        connection.send(trainers[number].rate())


def measure(names: list[str], rounds: int) -> list[tuple[str, int, Any, float, list[float]]]:
    """Return network, devices, configuration, predicted and measured rates of each."""
    context = multiprocessing.get_context("spawn")
    rows = []
    for name in names:
        workers = []
        found = []
        try:
            for count in (1, 2):
                ours, theirs = context.Pipe()
                process = context.Process(target=serve, args=(theirs, name, count), daemon=True)
                process.start()
                theirs.close()  # so that a process that has failed is noticed
                workers.append((process, ours))
                for number, (one, predicted) in enumerate(ours.recv()):
                    found.append((name, count, one, predicted, [], ours, number))
            for _ in range(rounds):
                for *_, rates, connection, number in found:
                    connection.send(number)
                    rates.append(connection.recv())
        finally:
            for process, connection in workers:
                if process.is_alive():
                    connection.send(None)
                process.join()
        rows += [row[:5] for row in found]
    return rows


def report(rows: list[tuple[str, int, Any, float, list[float]]]) -> list[str]:
    lines = [
        "| network | devices | configuration | predicted | measured [range] | ratio |",
        "|---|---|---|---|---|---|",
    ]
    errors = []
    for name, count, one, predicted, rates in rows:
        measured = statistics.median(rates)
        errors.append(abs(predicted / measured - 1))
        way = f"{one.replicas} replicas" if one.replicas > 1 else f"{one.stages} stages"
        lines.append(
            f"| {name} | {count} | {'one device' if count == 1 else way}, "
            f"{one.gradient_accumulation} x {one.micro_batch} | {predicted:.4g} | "
            f"{measured:.4g} [{min(rates):.4g} to {max(rates):.4g}] | {predicted / measured:.2f} |"
        )
    within = sum(error <= AIM for error in errors)
    lines += [
        "",
        f"- {within} of {len(rows)} within {AIM:.0%}; the worst is {max(errors):.0%} off.",
    ]
    for name in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == name]
        choice = max(own, key=lambda row: row[3])
        best = max(own, key=lambda row: statistics.median(row[4]))
        lost = 1 - statistics.median(choice[4]) / statistics.median(best[4])
        verdict = "met" if lost <= AIM_OF_CHOICE else "**short**"
        lines.append(f"- {name}: the planner's choice is {lost:.0%} behind the best: {verdict}.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for name in options.networks:
        print("\n".join(report(measure([name], options.rounds))), flush=True)


if __name__ == "__main__":
    main()
