"""Where a training step's time goes, as XLA's profiler sees it.

    .venv/bin/python -m benchmarks.peers.profile resnet20-wide efficientnet

Trains each network of the peers' page with Convoy under JAX's profiler and prints a table of the
time by kind of operation. Two to three minutes for each network, most of it compiling.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.peers.workloads import WORKLOADS, Workload

STEPS = 8
# By the names that XLA gives its instructions; the first that fits.
KINDS = {
    "convolutions": r"conv_general_dilated",
    "batch normalisation": r"ffi_call",
    "pooling": r"reduce_window|select_and_scatter",
    "matrix products": r"dot|ynn",
    "copies and transposes": r"copy|transpose|bitcast(?!.*fusion)",
    "random numbers": r"xor|threefry|shift",
    "element by element, and sums": r".*fusion|wrapped|reduce|broadcast",
}


def kind_of(instruction: str) -> str:
    """Name the kind of operation that an instruction of XLA's is."""
    return next((kind for kind, name in KINDS.items() if re.match(name, instruction)), "others")


def make_model(workload: Workload) -> Any:
    import convoy
    import keras
    from benchmarks.peers import keras_models

    with convoy.Strategy().scope():
        model = getattr(keras_models, workload.network)()
        model.compile(
            keras.optimizers.SGD(workload.learning_rate, momentum=workload.momentum),
            "mse" if workload.regression else "sparse_categorical_crossentropy",
            steps_per_execution=STEPS,
        )
    return model


def read(folder: Path) -> Counter[str]:
    """Return the seconds of each instruction in a trace."""
    import jax

    (file,) = folder.rglob("*.xplane.pb")
    seconds: Counter[str] = Counter()
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            for event in line.events:
                if "hlo_op" in dict(event.stats):
                    seconds[event.name] += event.duration_ns * 1e-9
    return seconds


def profile(workload: Workload) -> tuple[float, Counter[str]]:
    """Return the seconds of a step, and those of each kind of operation in it."""
    import jax

    model = make_model(workload)
    x, y = (part[: STEPS * workload.batch] for part in workload.data())

    def train() -> float:
        start = time.perf_counter()
        model.fit(x, y, batch_size=workload.batch, shuffle=False, verbose=0)
        return (time.perf_counter() - start) / STEPS

    train()
    step = train()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            train()
        seconds = read(Path(folder))
    kinds: Counter[str] = Counter()
    for instruction, duration in seconds.items():
        kinds[kind_of(instruction)] += duration / STEPS
    return step, kinds


def table(workload: Workload, step: float, kinds: Counter[str]) -> str:
    total = sum(kinds.values())
    lines = [
        f"### {workload.title}: {step * 1e3:,.0f} ms a step",
        "",
        "| kind of operation | part of the time |",
        "| --- | --- |",
        *(f"| {kind} | {seconds / total:.0%} |" for kind, seconds in kinds.most_common()),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [name for name, workload in WORKLOADS.items() if workload.kind == "training"]
    parser.add_argument("workloads", nargs="+", choices=names)
    for name in parser.parse_args().workloads:
        workload = WORKLOADS[name]
        print(table(workload, *profile(workload)), flush=True)
        print()


if __name__ == "__main__":
    main()
