"""Metrics of a command: from its output, from other metrics, and from functions of the user."""

import math
import re
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from convoy.bench.command import fill
from convoy.bench.execution import Execution
from convoy.bench.spec import Benchmark, Metric, SpecError, Variant
from convoy_command.parser import one_line

CustomMetric = Callable[[str, str, int], float]
"""Function of the standard output, the standard error and the exit status."""

THROUGHPUT = "throughput"
# The only metric whose worst values are the largest.
LATENCY = "latency"
# The names that expressions of derived metrics may use.
FUNCTIONS = {
    "min": min,
    "max": max,
    "abs": abs,
    "round": round,
    "sum": sum,
    **{name: getattr(math, name) for name in ("sqrt", "log", "log2", "log10", "exp", "ceil")},
}

_custom: dict[str, CustomMetric] = {}


Samples = list[float] | str
"""Numbers of a metric, or the reason why there are none."""


@dataclass
class Metrics:
    """Metrics of one run.

    Attributes:
        values: values by metric and reduction; `None` if a metric is missing.
        samples: numbers from which each value was computed.
        missing: reasons for missing metrics, one line each.
    """

    values: dict[str, dict[str, float | None]] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, reduction: str, samples: Samples) -> None:
        value = None
        if isinstance(samples, str):
            self.missing.append(f"{name}: {samples}")
        else:
            self.samples[name] = samples
            value = _reduce(reduction, samples)
        self.values[name] = {reduction: value}


def register_custom_metric(name: str, function: CustomMetric) -> None:
    """Add a metric to every benchmark.

    Args:
        name: name of the metric.
        function: function that computes a number from the standard output, the standard error
            and the exit status of a command.
    """
    _custom[name] = function


def load_custom_metrics(file: Path) -> None:
    """Run a Python file that calls `register_custom_metric`.

    Raises:
        SpecError: if the file fails or registers nothing.
    """
    before = dict(_custom)
    try:
        runpy.run_path(str(file))
    except Exception as error:  # any error of the user's file
        raise SpecError(
            f"--custom-metrics-files {file}: {type(error).__name__}: {one_line(error)}"
        ) from None
    if _custom == before:
        raise SpecError(
            f"--custom-metrics-files {file}: it registers no metric. Call register_custom_metric "
            "in it."
        )


def read_metrics(
    benchmark: Benchmark, parameters: Variant, command: Sequence[str], execution: Execution
) -> Metrics:
    """Return all metrics of a run.

    Args:
        benchmark: definition of the metrics.
        parameters: parameters of the variant.
        command: words of the command.
        execution: output and exit status of the command.
    """
    metrics = Metrics()
    for name, metric in benchmark.data.items():
        samples = _from_output(name, metric, execution)
        if name == THROUGHPUT and not isinstance(samples, str):
            samples = [_mpi_processes(command) * sample for sample in samples]
        metrics.add(name, metric.reduction_type, samples)
    for name, derived in benchmark.derived.items():
        known: dict[str, object] = dict(parameters)
        known |= {name: v for name, by in metrics.values.items() for v in by.values()}
        metrics.add(name, derived.reduction_type, _from_expression(derived.expr, known))
    for name, function in _custom.items():
        try:
            value = float(function(execution.stdout, execution.stderr, execution.exit_status))
            metrics.add(name, "value", [value])
        except Exception as error:  # any error of the user's function
            metrics.add(name, "value", f"{type(error).__name__}: {error}")
    return metrics


def _from_output(name: str, metric: Metric, execution: Execution) -> Samples:
    if execution.exit_status:
        return f"the command exited with status {execution.exit_status}"
    lines = f"{execution.stdout}\n{execution.stderr}".splitlines()
    found = [match for line in lines for match in metric.regexp.findall(line)]
    try:
        samples = [float(number.replace(",", "")) for number in found]
    except ValueError as error:
        return str(error)
    if any(map(math.isnan, samples)):
        return "a value in the output is not a number (NaN)"
    if not samples:
        return f"nothing in the output matches {metric.regexp.pattern!r}"
    if len(samples) <= metric.skip:
        return f"all {len(samples)} values are skipped (skip: {metric.skip})"
    if metric.reduction_type == "mean":
        return sorted(samples, reverse=name == LATENCY)[metric.skip :]
    return samples


def _from_expression(expression: str, known: Mapping[str, object]) -> Samples:
    for name, value in known.items():
        if value is None and f"{{{name}}}" in expression:
            return f"{expression!r}: {name} is missing"
    try:
        # A spec can run any command, so this is no sandbox: few names make mistakes visible.
        return [float(eval(fill(expression, known), {"__builtins__": FUNCTIONS}))]
    except (SpecError, ArithmeticError, TypeError, ValueError, NameError, SyntaxError) as error:
        return f"{expression!r}: {error}"


def _reduce(reduction: str, samples: Sequence[float]) -> float:
    if reduction == "mean":
        return sum(samples) / len(samples)
    if reduction == "min":
        return min(samples)
    return samples[-1] if reduction == "final" else samples[0]


def _mpi_processes(command: Sequence[str]) -> int:
    """Return the number of processes of an `mpirun`, each of which prints its own throughput."""
    if not any(word.endswith("mpirun") for word in command):
        return 1
    found = re.search(r"\s--?np?[ =](\d+)", " ".join(command))
    return int(found[1]) if found else 1
