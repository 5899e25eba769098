"""The figures of a report: times, throughput, utilisation, memory and metrics."""

import statistics
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from convoy.report.files import Report
from convoy.report.program_analysis import mode_of
from convoy.types import Json
from convoy.units import format_value

MODES = {"train": "training", "evaluate": "evaluation", "predict": "prediction"}
Unit = Literal["seconds", "bytes", "share", "per second", "flops", "flops per second", "count", ""]
Better = Literal["less", "more", ""]


@dataclass(frozen=True)
class Figure:
    """One figure of a report.

    Attributes:
        id: identifier, such as `train.step_time`. The page finds figures by it, so labels can
            change.
        group: title of the group.
        label: label of the figure.
        value: the value; `None` if it is unknown.
        unit: the unit of the value.
        better: whether less or more is better, if either is.
    """

    id: str
    group: str
    label: str
    value: float | None
    unit: Unit
    better: Better = ""


def _figure(
    prefix: str, group: str, name: str, label: str, value: float | None, *about: str
) -> Figure:
    return Figure(f"{prefix}.{name}", group, label, value, *about)  # type: ignore[arg-type]


def figures(report: Report) -> list[Figure]:
    """Return the figures of a report, in the order of display."""
    return [
        *_time(report),
        *(figure for mode in MODES for figure in _mode(report, mode)),
        *_memory(report),
        *_pipeline(report),
        *_metrics(report),
    ]


def to_json(report: Report) -> list[Json]:
    return [asdict(figure) for figure in figures(report)]


def table_lines(report: Report, other: Report | None = None) -> list[str]:
    """Return the figures as a table, with those of another report and the change, if given."""
    beside = {figure.id: figure for figure in figures(other)} if other is not None else {}
    lines, group = [], ""
    for figure in figures(report):
        if figure.group != group:
            lines += [""] * bool(group) + [figure.group]
            group = figure.group
        line = f"  {figure.label:<44} {format_value(figure.value, figure.unit):>14}"
        second = beside.get(figure.id)
        if second is not None:
            line += f" {format_value(second.value, second.unit):>14}"
            line += _change(figure.value, second.value)
        lines.append(line)
    return lines


def _change(value: float | None, other: float | None) -> str:
    return "" if not value or other is None else f"  {other / value - 1:+.1%}"


def flops_of(report: Report, mode: str) -> float:
    """Return the floating-point operations of all programs of a mode, on all devices."""
    times = report.run["totals"].get("programs", {})
    return sum(
        program["flops"] * times.get(str(number), {}).get("times", 0)
        for number, program in enumerate(report.programs)
        if mode_of(program["name"]) == mode
    )


def total_memory(program: Json) -> int:
    """Return the memory of a program on one device, in bytes."""
    memory = program["memory"]
    return memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]


def _time(report: Report) -> list[Figure]:
    run, host = report.run, report.run["totals"]["host"]
    devices = run["totals"]["devices"]
    compiling = sum(sum(program["seconds"].values()) for program in report.programs)
    in_runs = sum((one["ended"] or run["seconds"]) - one["began"] for one in run["runs"])
    busy = sum(total["seconds"] for total in devices.values())
    after_compiling = in_runs - _seconds(host, "compile")
    busy_share = min(1.0, busy / after_compiling) if after_compiling > 0 else None
    checkpoints = host.get("checkpoint", {"seconds": 0.0, "count": 0})

    figure = partial(_figure, "time", "time")
    return [
        figure("total", "total", run["seconds"], "seconds", "less"),
        figure("compilation", "compilation", compiling, "seconds", "less"),
        figure("programs", "compiled programs", len(report.programs), "count"),
        figure("device", "devices busy", busy, "seconds", "less"),
        figure("device_share", "devices busy, after compilation", busy_share, "share", "more"),
        figure("input", "waiting for input", _seconds(host, "input"), "seconds", "less"),
        figure("prefetch", "prefetching input", _seconds(host, "prefetch"), "seconds"),
        figure("wait", "callbacks, waiting for devices", _seconds(host, "wait"), "seconds"),
        figure("callbacks", "callbacks, otherwise", _seconds(host, "callbacks"), "seconds", "less"),
        figure("pauses", "checkpoint pauses", checkpoints["seconds"], "seconds", "less"),
        figure("checkpoints", "checkpoints", checkpoints["count"], "count"),
    ]


def _seconds(host: Json, kind: str) -> float:
    return host.get(kind, {}).get("seconds", 0.0)


def _mode(report: Report, mode: str) -> list[Figure]:
    total = report.run["totals"]["devices"].get(mode)
    if not total:
        return []
    seconds, steps, samples = total["seconds"], total["steps"], total["samples"]
    flops = flops_of(report, mode)
    peak = report.run["peak"]["flops_per_second"]
    rate = flops / seconds if seconds else None

    figure = partial(_figure, mode, MODES[mode])
    return [
        figure("steps", "steps", steps, "count"),
        figure("calls", "device calls", total["calls"], "count"),
        figure("step_time", "step time", seconds / steps, "seconds", "less"),
        figure("throughput", "throughput (samples)", samples / seconds, "per second", "more"),
        figure("step_flops", "operations per step", flops / steps, "flops"),
        figure("flops", "operations per second", rate, "flops per second", "more"),
        figure("utilisation", "utilisation (MFU)", rate and rate / peak, "share", "more"),
    ]


def _memory(report: Report) -> list[Figure]:
    figure = partial(_figure, "memory", "memory")
    largest: dict[str, int] = {}
    for program in report.programs:
        mode = mode_of(program["name"])
        largest[mode] = max(largest.get(mode, 0), total_memory(program))
    found = [
        figure(mode, f"{MODES[mode]}, per device", size, "bytes", "less")
        for mode, size in largest.items()
    ]
    host = [size for _, size in report.parts["host_memory"]]
    if host:
        found.append(figure("host", "host process, peak", max(host), "bytes", "less"))
    return found


def _pipeline(report: Report) -> list[Figure]:
    updates = report.parts["pipelines"]
    if not updates:
        return []

    def median(kind: str, name: str) -> float:
        return statistics.median(update[kind][name] for update in updates)

    figure = partial(_figure, "pipeline", "pipeline")
    return [
        figure("update", "update time, measured", median("measured", "seconds"), "seconds", "less"),
        figure("simulated", "update time, simulated", median("simulated", "seconds"), "seconds"),
        figure("bubble", "bubble, measured", median("measured", "bubble"), "share", "less"),
        figure("simulated_bubble", "bubble, simulated", median("simulated", "bubble"), "share"),
    ]


def _metrics(report: Report) -> list[Figure]:
    epochs = report.parts["epochs"]
    values: dict[str, Any] = epochs[-1][2] if epochs else {}
    figure = partial(_figure, "metric", "metrics of the last epoch")
    return [
        figure(name, name, value, "", "less" if "loss" in name else "more")
        for name, value in values.items()
        if isinstance(value, (int, float))
    ]
