"""The figures that a report comes down to."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any, Literal

from convoy.report.files import Json, Report
from convoy.report.programs import mode_of

MODES = {"train": "training", "evaluate": "evaluation", "predict": "prediction"}
Unit = Literal["seconds", "bytes", "share", "per second", "flops", "flops per second", "count", ""]
Better = Literal["less", "more", ""]


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        group: under which title it stands.
        name: what it is.
        value: of it; `None` if it is not known.
        unit: of the value.
        better: whether less or more of it is better, or neither.
    """

    group: str
    name: str
    value: float | None
    unit: Unit
    better: Better = ""


def figures(report: Report) -> list[Figure]:
    """Return the figures of a report, in the order in which they are shown."""
    return [
        *_time(report),
        *(figure for mode in MODES for figure in _mode(report, mode)),
        *_memory(report),
        *_pipeline(report),
        *_metrics(report),
    ]


def to_json(report: Report) -> list[Json]:
    return [asdict(figure) for figure in figures(report)]


def flops_of(report: Report, mode: str) -> float:
    """Return the floating-point work of all that was run in a mode, by all devices."""
    times = report.run["totals"].get("programs", {})
    return sum(
        program["flops"] * times.get(str(number), {}).get("times", 0)
        for number, program in enumerate(report.programs)
        if mode_of(program["name"]) == mode
    )


def total_memory(program: Json) -> int:
    """Return the bytes that a program takes on a device while it runs."""
    memory = program["memory"]
    return memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]


def _time(report: Report) -> list[Figure]:
    run, host = report.run, report.run["totals"]["host"]
    devices = run["totals"]["devices"]
    compiling = sum(sum(program["seconds"].values()) for program in report.programs)
    whole = sum((one["ended"] or run["seconds"]) - one["began"] for one in run["runs"])
    busy = sum(total["seconds"] for total in devices.values())
    working = whole - _seconds(host, "compile")
    checkpoints = host.get("checkpoint", {"seconds": 0.0, "count": 0})
    group = "time"
    return [
        Figure(group, "whole", run["seconds"], "seconds", "less"),
        Figure(group, "compiling", compiling, "seconds", "less"),
        Figure(group, "compiled programs", len(report.programs), "count"),
        Figure(group, "devices busy", busy, "seconds", "less"),
        Figure(
            group,
            "devices busy, of the time after compiling",
            min(1.0, busy / working) if working > 0 else None,
            "share",
            "more",
        ),
        Figure(group, "waiting for input", _seconds(host, "input"), "seconds", "less"),
        Figure(group, "preparing input meanwhile", _seconds(host, "prefetch"), "seconds"),
        Figure(group, "callbacks", _seconds(host, "callbacks"), "seconds", "less"),
        Figure(group, "checkpoint pauses", checkpoints["seconds"], "seconds", "less"),
        Figure(group, "checkpoints", checkpoints["count"], "count"),
    ]


def _seconds(host: Json, kind: str) -> float:
    return host.get(kind, {}).get("seconds", 0.0)


def _mode(report: Report, mode: str) -> list[Figure]:
    total = report.run["totals"]["devices"].get(mode)
    if not total:
        return []
    group, seconds = MODES[mode], total["seconds"]
    flops = flops_of(report, mode)
    peak = report.run["peak"]["flops_per_second"]
    rate = flops / seconds if seconds else None
    return [
        Figure(group, "steps", total["steps"], "count"),
        Figure(group, "device calls", total["calls"], "count"),
        Figure(group, "a step", seconds / total["steps"], "seconds", "less"),
        Figure(group, "samples", total["samples"] / seconds, "per second", "more"),
        Figure(group, "floating-point work of a step", flops / total["steps"], "flops"),
        Figure(group, "floating-point work", rate, "flops per second", "more"),
        Figure(group, "share of the measured peak", rate and rate / peak, "share", "more"),
    ]


def _memory(report: Report) -> list[Figure]:
    group = "memory of a device"
    found: dict[str, int] = {}
    for program in report.programs:
        mode = mode_of(program["name"])
        found[mode] = max(found.get(mode, 0), total_memory(program))
    figures = [
        Figure(group, f"largest program of {MODES[mode]}", size, "bytes", "less")
        for mode, size in found.items()
    ]
    held = [size for _, size in report.parts["host_memory"]]
    if held:
        figures.append(Figure(group, "this process, at most", max(held), "bytes", "less"))
    return figures


def _pipeline(report: Report) -> list[Figure]:
    updates = report.parts["pipelines"]
    if not updates:
        return []

    def median(kind: str, name: str) -> float:
        return statistics.median(update[kind][name] for update in updates)

    group = "pipeline"
    return [
        Figure(group, "an update, measured", median("measured", "seconds"), "seconds", "less"),
        Figure(group, "an update, simulated", median("simulated", "seconds"), "seconds"),
        Figure(group, "bubble, measured", median("measured", "bubble"), "share", "less"),
        Figure(group, "bubble, simulated", median("simulated", "bubble"), "share"),
    ]


def _metrics(report: Report) -> list[Figure]:
    epochs = report.parts["epochs"]
    values: dict[str, Any] = epochs[-1][2] if epochs else {}
    return [
        Figure("metrics of the last epoch", name, value, "", "less" if "loss" in name else "more")
        for name, value in values.items()
        if isinstance(value, (int, float))
    ]
