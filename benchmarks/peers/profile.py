"""Profile of a training step by XLA's profiler.

    .venv/bin/python -m benchmarks.peers.profile resnet20-wide efficientnet

Runs each row of the peers' page with Convoy under JAX's profiler and prints the time by kind of
operation. Two to three minutes for each network, most of it compilation.
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


FUSED = "convolutions with all that follows them"


def kind_of(instruction: str, workload: Workload) -> str:
    """Name the kind of operation that an instruction of XLA's is."""
    if workload.kind == "inference" and instruction.startswith("ffi_call"):
        return FUSED
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
    import numpy as np

    model = make_model(workload)
    x, y = workload.data()
    x, y = (np.resize(part, (STEPS * workload.batch, *part.shape[1:])) for part in (x, y))

    def run() -> float:
        start = time.perf_counter()
        if workload.kind == "training":
            model.fit(x, y, batch_size=workload.batch, shuffle=False, verbose=0)
        else:
            for first in range(0, STEPS * workload.batch, workload.batch):
                model.predict_on_batch(x[first : first + workload.batch])
        return (time.perf_counter() - start) / STEPS

    run()
    step = run()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        seconds = read(Path(folder))
    kinds: Counter[str] = Counter()
    for instruction, duration in seconds.items():
        kinds[kind_of(instruction, workload)] += duration / STEPS
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
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    for name in parser.parse_args().workloads:
        workload = WORKLOADS[name]
        print(table(workload, *profile(workload)), flush=True)
        print()


if __name__ == "__main__":
    main()
