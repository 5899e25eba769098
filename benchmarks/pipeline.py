"""Speed and memory of a two-stage pipeline, compared with one device and with its simulation.

    .venv/bin/python benchmarks/pipeline.py

Each variant is a process that trains the same network: a stem and eight equal convolutions, four in
each stage. The processes take turns, round by round, and sleep in between, so that noise of the
machine affects all. It compares one device on one core with two stages on two cores, one thread
each; the measured time of an update with the simulated time, from actions timed in the same turn;
and the zero-bubble schedule with 1F1B. It also prints the memory of each stage and of the whole
model, and the host time per action. Expected in 6 minutes on two quiet cores: 16 micro-batches take
at most 1 / 1.6 of the time of one device, and the simulation is within 10 %.
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
SHAPE, FILTERS, LAYERS, BATCH = (32, 32, 3), 32, 8, 32


@dataclass(frozen=True)
class Variant:
    """How the network is trained."""

    title: str
    stages: int
    micro_batches: int
    schedule: str = "1f1b"
    activation_checkpointing: bool = False


VARIANTS = {
    "one": Variant("one device, 16 micro-batches", 1, 16),
    "1f1b": Variant("1F1B, 16 micro-batches", 2, 16),
    "zero-bubble": Variant("zero-bubble, 16 micro-batches", 2, 16, "zero-bubble"),
    "recompute": Variant("1F1B, recomputing", 2, 16, activation_checkpointing=True),
    "1f1b-4": Variant("1F1B, 4 micro-batches", 2, 4),
    "zero-bubble-4": Variant("zero-bubble, 4 micro-batches", 2, 4, "zero-bubble"),
}


def network(layers_in_all: int, shape: tuple[int, ...], filters: int) -> Any:
    import keras
    from keras import layers

    inputs = keras.Input(shape)
    # Takes no gradient for its input. With it in front, all of the others do, and cost the same.
    x = layers.Conv2D(filters, 3, padding="same", activation="relu", name="stem")(inputs)
    for number in range(layers_in_all):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", name=f"c{number}")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


class Trainer:
    """Trains a network in a variant's way.

    Args:
        variant: the way.
        updates: weight updates in one device call.
        alone: whether actions are recorded, each with the machine to itself.
        size: of the network: layers, shape, filters and samples of a micro-batch.
    """

    def __init__(
        self,
        variant: Variant,
        updates: int,
        *,
        alone: bool = False,
        size: tuple[int, tuple[int, ...], int, int] = (LAYERS, SHAPE, FILTERS, BATCH),
    ) -> None:
        import convoy
        import keras
        import numpy as np

        depth, shape, filters, self.batch = size
        self.updates, self.micro_batches = updates, variant.micro_batches
        strategy = convoy.Strategy(
            devices=variant.stages, gradient_accumulation=variant.micro_batches
        )
        with strategy.scope():
            self.model = network(depth, shape, filters)
            self.model.compile(
                keras.optimizers.SGD(0.001, momentum=0.9),
                "sparse_categorical_crossentropy",
                steps_per_execution=updates * variant.micro_batches,
            )
        if variant.stages > 1:
            convoy.split(self.model, [f"c{depth // 2}"])
            self.model.set_pipelining_options(
                schedule=variant.schedule,
                activation_checkpointing=variant.activation_checkpointing,
                record=alone,
            )
        rng = np.random.default_rng(0)
        samples = updates * variant.micro_batches * self.batch
        self.x = rng.normal(size=(samples, *shape)).astype("float32")
        self.y = rng.integers(0, 10, samples).astype("int32")
        self.seconds()
        if alone:
            self.programs.serialized = True

    @property
    def programs(self) -> Any:
        return self.model.fit.__self__.host_loop.runners.find("train")

    def seconds(self) -> float:
        """Train; return the time of one update."""
        start = time.perf_counter()
        self.model.fit(self.x, self.y, batch_size=self.batch, verbose=0)
        return (time.perf_counter() - start) / self.updates


def simulated(trainer: Trainer) -> float:
    """Time every action by itself, and return how long an update of them would take."""
    from convoy.pipeline import simulate, stage_durations

    trainer.seconds()
    taken = stage_durations(trainer.model.get_pipeline_timeline())
    return simulate(trainer.programs.schedule, taken).seconds


def memory_of_stages(trainer: Trainer) -> list[int]:
    """Return the most bytes that each stage takes, by XLA's own analysis of its programs."""
    import jax
    from convoy.engine.data.placement import tree_bytes
    from convoy.keras_bridge import values
    from convoy.pipeline import simulate

    programs = trainer.programs
    ((stage_programs, *_),) = programs._programs.values()
    calls: dict[tuple[int, str], Any] = {}
    kept: dict[int, int] = {}

    def spy(number: int, name: str, function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
            calls[number, name] = function, shapes
            result = function(*arguments)
            if name == "run_forward":
                # What was received is kept too, but for the data, which lies there anyway.
                kept[number] = tree_bytes(result[1]) + tree_bytes(arguments[1])
            return result

        return run

    for number, program in enumerate(stage_programs):
        for name in ("run_forward", "backward"):
            setattr(program, name, spy(number, name, getattr(program, name)))
    trainer.seconds()
    stash = simulate(programs.schedule).peak_stash
    found = []
    for number, update in enumerate(programs.rank_updates):
        weights = tree_bytes(values(update.trainable))
        state = 2 * weights + tree_bytes(values(update.variables))
        temporary = 0
        for name in ("run_forward", "backward"):
            function, shapes = calls[number, name]
            analysis = function.lower(*shapes).compile().memory_analysis()
            temporary = max(temporary, analysis.temp_size_in_bytes)
        found.append(state + stash[number] * kept[number] + temporary)
    return found


def memory_of_all(trainer: Trainer) -> int:
    """Return the most bytes that the whole model takes, without the data."""
    import numpy as np
    from convoy.engine.data.chunks import Chunk
    from convoy.engine.data.placement import tree_bytes
    from convoy.keras_bridge import values

    model = trainer.model
    batch, count = trainer.batch, trainer.updates * trainer.micro_batches
    chunk = Chunk("contiguous", ((trainer.x, trainer.y), None, np.int32(0)), batch, count)
    analysis = trainer.programs.memory(chunk)
    weights = tree_bytes(values(model.trainable_variables))
    return 2 * weights + tree_bytes(values(model.optimizer.variables)) + analysis.temp_size_in_bytes


def host_microseconds(variant: Variant) -> float:
    """Return the host's time for an action, of a network that computes next to nothing."""
    trainer = Trainer(variant, 8, size=(2, (2, 2, 1), 1, 1))
    actions = 2 * variant.stages * variant.micro_batches
    return min(trainer.seconds() for _ in range(5)) / actions * 1e6


def serve(connection: Connection, variant: Variant, updates: int, batch: int) -> None:
    """Respond to `turn`, `memory` and `host` until the connection ends."""
    os.sched_setaffinity(0, CORES[: variant.stages])
    os.environ["CONVOY_DEVICES"] = str(variant.stages)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    size = LAYERS, SHAPE, FILTERS, batch
    trainer = Trainer(variant, updates, size=size)
    alone = Trainer(variant, 1, alone=True, size=size) if variant.stages > 1 else None
    connection.send("ready")
    while question := connection.recv():
        if question == "turn":
            connection.send((trainer.seconds(), simulated(alone) if alone else None))
        elif question == "memory":
            connection.send(memory_of_stages(trainer) if alone else [memory_of_all(trainer)])
        else:
            connection.send(host_microseconds(variant))


def spread(values: list[float], form: str = "{:.2f}") -> str:
    low, middle, high = (
        form.format(value) for value in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} [{low} to {high}]"


def report(turns: dict[str, list[tuple]], memory: dict[str, Any], host: float) -> list[str]:
    """Return the lines of the result."""

    def ratio(over: str, under: str) -> str:
        pairs = zip(turns[over], turns[under], strict=True)
        return spread([a[0] / b[0] for a, b in pairs])

    lines = [f"{'':32} ms per update [range]      measured / simulated [range]"]
    for name, found in turns.items():
        measured = spread([1e3 * turn[0] for turn in found], "{:.0f}")
        beside = spread([a / b for a, b in found]) if found[0][1] else "-"
        lines.append(f"{VARIANTS[name].title:32} {measured:26} {beside}")
    lines.append(f"one device / 1F1B: speedup {ratio('one', '1f1b')}")
    lines.append(f"one device / zero-bubble: speedup {ratio('one', 'zero-bubble')}")
    for number in ("", "-4"):
        over, under = f"1f1b{number}", f"zero-bubble{number}"
        simulated = [a[1] / b[1] for a, b in zip(turns[over], turns[under], strict=True)]
        count = VARIANTS[over].micro_batches
        lines.append(
            f"1F1B / zero-bubble, {count} micro-batches: {ratio(over, under)} measured, "
            f"{spread(simulated)} simulated"
        )
    for name, found in memory.items():
        sizes = ", ".join(f"{size / 1e6:.1f}" for size in found)
        lines.append(f"{VARIANTS[name].title:32} {sizes} MB on a device at most, without the data")
    lines.append(f"host time per action: {host:.0f} us")
    return lines


def measure(rounds: int, updates: int, batch: int) -> list[str]:
    context = multiprocessing.get_context("spawn")
    workers = {}
    try:
        for name, variant in VARIANTS.items():
            ours, theirs = context.Pipe()
            arguments = theirs, variant, updates, batch
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            ours.recv()
            workers[name] = process, ours

        def request(name: str, question: str) -> Any:
            workers[name][1].send(question)
            return workers[name][1].recv()

        turns: dict[str, list[tuple]] = {name: [] for name in VARIANTS}
        for _ in range(rounds):
            for name in VARIANTS:
                turns[name].append(request(name, "turn"))
        memory = {name: request(name, "memory") for name in ("one", "1f1b", "recompute")}
        return report(turns, memory, request("1f1b", "host"))
    finally:
        for process, connection in workers.values():
            connection.send("")
            process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=2, help="weight updates in a turn")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of a micro-batch")
    options = parser.parse_args()
    print(
        f"{LAYERS} convolutions of {FILTERS} filters at {SHAPE[0]}, micro-batches of "
        f"{options.batch}, {options.rounds} rounds",
        flush=True,
    )
    print("\n".join(measure(options.rounds, options.updates, options.batch)))


if __name__ == "__main__":
    main()
