"""Profile of a workload with Convoy, by XLA's profiler.

    .venv/bin/python -m benchmarks.peers.profile resnet20-wide convnexttiny-fit

For each workload, prints the time of a step by kind of operation, and the time that the
operations would take at the machine's peak: the speed of a large matrix product for their
floating-point operations, or of a large copy for the bytes that they read and write, whichever
takes longer. Two to three minutes for each network, most of it compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.suites import WORKLOADS
from benchmarks.peers.workloads import Workload

if TYPE_CHECKING:
    from convoy.report.hlo import Instruction, Program

STEPS = 8
SHOWN = 14
"""Kinds of operations in a table; the others share a row."""
FORMS = ("forward", "input gradient", "weight gradient", "forward, fused")
ELSEWHERE = "outside the step's program"


def kind_of(instruction: Instruction, kind: str, part: str) -> str:
    """Name the kind of an instruction, more closely for convolutions.

    Args:
        instruction: the instruction.
        kind: its kind in Convoy's reports.
        part: the pass it belongs to.
    """
    from convoy.report.operation_costs import kernel_description

    # Calls of other kernels have descriptions, too.
    numbers = kernel_description(instruction) if "convolution" in instruction.target else []
    if not numbers:
        return f"{kind}, {part}"
    form, rank, grouped = numbers[0], numbers[2], numbers[3]
    first = 4 + 2 * (rank + 2)
    weights = numbers[first : first + rank + 2 + grouped]
    window, groups = weights[2 + grouped :], ""
    if grouped:
        # The number of groups, then the outputs and the inputs of each.
        groups = " depthwise" if weights[2] == 1 else f" grouped ({weights[0]})"
    return f"{'x'.join(map(str, window))}{groups} convolution, {FORMS[form]}"


def make_model(workload: Workload) -> Any:
    import convoy
    from benchmarks.peers import keras_models

    with convoy.Strategy().scope():
        model = keras_models.make(workload)
        keras_models.compile_model(model, workload, workload.loop_steps)
    return model


def read_trace(folder: Path) -> Counter[str]:
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


def find_program(folder: Path, seconds: Counter[str]) -> Program:
    """Return the dumped program whose instructions took most of the time."""
    from convoy.report.hlo import Program

    def covered(program: Program) -> float:
        names = {one.name for body in program.computations.values() for one in body}
        return sum(seconds[name] for name in names)

    files = sorted(folder.glob("*after_optimizations.txt"), key=lambda file: -file.stat().st_size)
    # The step is among the largest programs.
    return max((Program.parse(file.read_text()) for file in files[:5]), key=covered)


def sum_by_kind(
    program: Program, seconds: Counter[str], steps: int, trains: bool
) -> list[dict[str, Any]]:
    """Return the time and the costs of each kind of operation in a step, the longest first."""
    from convoy.report.hlo import ALIASES
    from convoy.report.operation_costs import Costs

    costs, left = Costs(program, trains=trains), Counter(seconds)
    rows: dict[str, dict[str, Any]] = {}
    # The instructions of the device loop's body are noted once.
    for instruction, shapes, times in program.executed():
        taken = left.pop(instruction.name, 0.0)
        if instruction.opcode in ALIASES or not taken:
            continue
        cost = costs.of(instruction, shapes)
        kind = kind_of(instruction, cost.kind, cost.part)
        row = rows.setdefault(kind, {"kind": kind, "count": 0, **_NOTHING})
        row["count"] += times
        row["seconds"] += taken / steps
        row["flops"] += times * cost.flops
        row["bytes"] += times * cost.bytes
    if left:
        elsewhere = sum(left.values()) / steps
        rows[ELSEWHERE] = {"kind": ELSEWHERE, "count": 0, **_NOTHING, "seconds": elsewhere}
    return sorted(rows.values(), key=lambda row: -row["seconds"])


_NOTHING = {"seconds": 0.0, "flops": 0.0, "bytes": 0.0}


def profile(workload: Workload, dumps: Path) -> dict[str, Any]:
    """Profile a workload.

    Args:
        workload: the workload.
        dumps: the folder into which XLA writes its programs.

    Returns:
        The name of the workload; the seconds of a step, without the profiler; the kinds of
        operations in it; and the peak of the machine.
    """
    import jax
    import numpy as np

    for file in dumps.iterdir():
        file.unlink()
    model, steps = make_model(workload), max(STEPS, workload.loop_steps)
    x, y = workload.data()
    x, y = (np.resize(part, (steps * workload.batch, *part.shape[1:])) for part in (x, y))

    def run() -> float:
        start = time.perf_counter()
        if workload.kind == "training":
            model.fit(x, y, batch_size=workload.batch, shuffle=False, verbose=0)
        elif workload.kind == "prediction":
            model.predict(x, batch_size=workload.batch, verbose=0)
        else:
            for first in range(0, steps * workload.batch, workload.batch):
                model.predict_on_batch(x[first : first + workload.batch])
        return (time.perf_counter() - start) / steps

    run()
    step = min(run(), run())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        seconds = read_trace(Path(folder))
    program = find_program(dumps, seconds)
    kinds = sum_by_kind(program, seconds, steps, workload.kind == "training")
    return {"workload": workload.name, "step_seconds": step, "kinds": kinds, "peak": peak()}


def peak() -> dict[str, float]:
    """Return the measured floating-point operations and copied bytes per second, in float32."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    size = 2048
    matrix, vector = np.ones((size, size), np.float32), jnp.ones(1 << 26)
    add_one = jax.jit(lambda x: x + 1)
    product = _fastest(lambda: matrix @ matrix)
    moved = _fastest(lambda: add_one(vector).block_until_ready())
    return {"flops": 2 * size**3 / product, "bytes": 2 * vector.nbytes / moved}


def _fastest(function: Callable[[], object]) -> float:
    """Return the shortest time of some calls on all cores, from their CPU time.

    Other programs that use the same cores change it less than the duration.
    """

    def run() -> float:
        start = time.process_time()
        function()
        return (time.process_time() - start) / len(os.sched_getaffinity(0))

    return min(run() for _ in range(8))


def table(found: dict[str, Any]) -> str:
    """Return the kinds of operations of a profile as Markdown."""
    kinds, peak = found["kinds"], found["peak"]
    total = sum(row["seconds"] for row in kinds)
    lines = [
        f"{found['step_seconds'] * 1e3:,.1f} ms a step; the operations together take "
        f"{total * 1e3:,.1f} ms. Peak: {peak['flops'] / 1e9:,.0f} GFLOP/s, "
        f"{peak['bytes'] / 1e9:,.1f} GB/s.",
        "",
        "| operations | in a step | ms | part | GFLOP | GB | ms at the peak |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_line(row, total, peak) for row in kinds[:SHOWN]),
    ]
    if others := kinds[SHOWN:]:
        summed = {name: sum(row[name] for row in others) for name in ("count", *_NOTHING)}
        lines.append(_line({"kind": f"{len(others)} other kinds", **summed}, total, peak))
    return "\n".join(lines)


def _line(row: dict[str, Any], total: float, peak: dict[str, float]) -> str:
    limit = max(row["flops"] / peak["flops"], row["bytes"] / peak["bytes"])
    return (
        f"| {row['kind']} | {row['count'] or '-'} | {row['seconds'] * 1e3:,.1f} "
        f"| {row['seconds'] / total:.0%} | {row['flops'] / 1e9:,.2f} "
        f"| {row['bytes'] / 1e9:,.2f} | {limit * 1e3:,.1f} |"
    )


def run_profiles(names: Iterable[str], as_json: bool) -> None:
    with tempfile.TemporaryDirectory() as dumps:
        # Read when XLA starts, so before Convoy is imported.
        dump = f"--xla_dump_to={dumps} --xla_dump_hlo_as_text"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {dump}"
        os.environ["CONVOY_COMPILATION_CACHE"] = "0"
        for name in names:
            found = profile(WORKLOADS[name], Path(dumps))
            if as_json:
                print(json.dumps(found), flush=True)
            else:
                print(f"### {WORKLOADS[name].title}\n\n{table(found)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each")
    options = parser.parse_args()
    run_profiles(options.workloads, options.json)


if __name__ == "__main__":
    main()
