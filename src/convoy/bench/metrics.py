"""Figures from what a command printed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from convoy.bench.invocation import fill
from convoy.bench.spec import Benchmark, Metric, SpecError

CustomMetric = Callable[[str, str, int], float]
"""Takes the standard output, the standard error and the exit status."""

# Lower is better: the worst values are the highest.
LATENCY, THROUGHPUT = "latency", "throughput"
NAMES = {name: getattr(math, name) for name in ("sqrt", "log", "log2", "log10", "exp", "ceil")}
FUNCTIONS = {"min": min, "max": max, "abs": abs, "round": round, "sum": sum, **NAMES}

_custom: dict[str, CustomMetric] = {}


@dataclass
class Figures:
    """What was found.

    Attributes:
        values: of each metric, by the word for its reduction; `None` if it is missing.
        samples: of each metric, the numbers that its value was made of.
        missing: why a metric is missing, a line each.
    """

    values: dict[str, dict[str, float | None]] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def register_custom_metric(name: str, function: CustomMetric) -> None:
    """Have a function compute a metric for every benchmark.

    Args:
        name: of the metric.
        function: is called with the standard output, the standard error and the exit status of a
            command, and returns a number.
    """
    _custom[name] = function


def custom_metrics() -> Mapping[str, CustomMetric]:
    return _custom


def read_figures(
    benchmark: Benchmark,
    parameters: Mapping[str, str],
    words: Sequence[str],
    output: tuple[str, str],
    exit_status: int,
) -> Figures:
    """Find every metric of a benchmark.

    Args:
        benchmark: says what to look for.
        parameters: of the variant.
        words: of the command.
        output: what it wrote to the standard output and to the standard error.
        exit_status: how it ended; after a failure no figure counts.
    """
    figures = Figures()
    text = "\n".join(output)
    for metric in benchmark.metrics:
        samples, problem = _samples(metric, text, exit_status)
        value = None
        if problem:
            figures.missing.append(f"{metric.name}: {problem}")
        else:
            times = _processes(words) if metric.name == THROUGHPUT else 1
            samples = [times * sample for sample in samples]
            value = _reduce(metric, samples)
            figures.samples[metric.name] = samples
        figures.values[metric.name] = {metric.reduction: value}
    for derived in benchmark.derived:
        known: dict[str, object] = dict(parameters)
        known |= {name: v for name, by in figures.values.items() for v in by.values()}
        found = None
        try:
            found = _evaluate(derived.expression, known)
            figures.samples[derived.name] = [found]
        except (SpecError, ArithmeticError, TypeError, ValueError, NameError, SyntaxError) as error:
            figures.missing.append(f"{derived.name}: {derived.expression!r}: {error}")
        figures.values[derived.name] = {derived.reduction: found}
    for name, function in _custom.items():
        found = None
        try:
            found = float(function(*output, exit_status))
            figures.samples[name] = [found]
        except Exception as error:  # of a function that the user wrote
            figures.missing.append(f"{name}: {type(error).__name__}: {error}")
        figures.values[name] = {"value": found}
    return figures


def _samples(metric: Metric, text: str, exit_status: int) -> tuple[list[float], str]:
    """Return the numbers that count, or what is wrong with them."""
    if exit_status:
        return [], f"the command ended with exit status {exit_status}"
    found = [match for line in text.splitlines() for match in metric.pattern.findall(line)]
    try:
        samples = [float(number.replace(",", "")) for number in found]
    except ValueError as error:
        return [], f"{error}"
    if any(map(math.isnan, samples)):
        return [], "is not a number (NaN)"
    if not samples:
        return [], f"nothing in the output fits {metric.pattern.pattern!r}"
    if len(samples) <= metric.skip:
        return [], f"{len(samples)} values were found, all of which are skipped ({metric.skip})"
    if metric.reduction == "mean":
        return sorted(samples, reverse=metric.name == LATENCY)[metric.skip :], ""
    return samples, ""


def _reduce(metric: Metric, samples: Sequence[float]) -> float:
    if metric.reduction == "mean":
        return sum(samples) / len(samples)
    if metric.reduction == "min":
        return min(samples)
    return samples[-1] if metric.reduction == "final" else samples[0]


def _processes(words: Sequence[str]) -> int:
    """Return the processes of an `mpirun`, each of which tells its own throughput."""
    if not any(word.endswith("mpirun") for word in words):
        return 1
    found = re.search(r"\s--?np?[ =](\d+)", " ".join(words))
    return int(found[1]) if found else 1


def _evaluate(expression: str, known: Mapping[str, object]) -> float:
    absent = [
        name for name, value in known.items() if value is None and f"{{{name}}}" in expression
    ]
    if absent:
        raise SpecError(f"{absent[0]} is missing")
    # A spec runs any command anyway; names are kept few so that a slip is an error.
    return float(eval(fill(expression, known), {"__builtins__": FUNCTIONS}))
