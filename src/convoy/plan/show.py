"""What a plan says, as text."""

from __future__ import annotations

from collections.abc import Sequence

from convoy.pipeline import render_text
from convoy.plan.machine import Machine
from convoy.plan.predict import Prediction, Predictor
from convoy.plan.search import Found
from convoy.units import format_count, format_number, format_seconds, format_table

COLUMNS = (
    "replicas",
    "stages",
    "micro-batch",
    "accumulated",
    "schedule",
    "recompute",
    "samples/s",
    "bubble",
    "GB/device",
    "update",
    "exchange",
)
# A file has plain numbers, in one unit.
FILE_COLUMNS = tuple("ms/update" if column == "update" else column for column in COLUMNS)
WIDTH = 100


def row(prediction: Prediction) -> tuple[str, ...]:
    one = prediction.configuration
    return (
        str(one.replicas),
        str(one.stages),
        str(one.micro_batch),
        str(one.accumulation),
        one.schedule or "-",
        "yes" if one.recompute else "no",
        format_number(prediction.throughput),
        f"{prediction.bubble:.1%}",
        f"{prediction.memory / 1e9:.2f}",
        format_seconds(prediction.seconds, digits=4),
        f"{prediction.exchange / prediction.seconds:.1%}",
    )


def file_row(prediction: Prediction) -> tuple[str, ...]:
    plain = {
        "samples/s": f"{prediction.throughput:.3f}",
        "update": f"{1e3 * prediction.seconds:.3f}",
    }
    cells = zip(COLUMNS, row(prediction), strict=True)
    return tuple(plain.get(column, cell) for column, cell in cells)


def table(predictions: Sequence[Prediction]) -> str:
    return "\n".join(format_table([COLUMNS, *map(row, predictions)], str.rjust))


def assumptions(machine: Machine, costs: str) -> str:
    """Return what the figures rest on."""
    hosts = -(-machine.devices // machine.per_host)
    lines = [
        f"costs       {costs}",
        f"devices     {machine.devices} of {machine.memory / 1e9:.3g} GB, "
        f"{machine.per_host} on each of {format_count(hosts, 'host')}",
        f"transfers   {format_number(machine.link / 1e9, 3)} GB/s from stage to stage; "
        f"replicas on a host add up {format_number(machine.exchange / 1e9, 3)} GB/s",
        f"update      {format_number(machine.update / 1e9, 3)} GB/s of weights; "
        f"{1e6 * machine.host_action:.0f} us of the host for each action of a pipeline",
    ]
    if hosts > 1:
        lines.append(
            f"network     {format_number(machine.network / 1e9, 3)} GB/s and "
            f"{1e6 * machine.latency:.0f} us between hosts; "
            "the exchange does not overlap with computing"
        )
    lines.append("not counted reading and decoding of images, checkpoints, compiling")
    return "\n".join(lines)


def picture(predictor: Predictor, prediction: Prediction) -> str:
    """Draw the schedule of one replica, for some of its micro-batches."""
    one = prediction.configuration
    if one.stages == 1:
        count = one.accumulation
        steps = " ".join(f"F{m} B{m}" for m in range(min(count, 4)))
        return f"every device  {steps}{' ...' if count > 4 else ''} exchange update"
    timeline = predictor.timeline(one, most=2 * one.stages)
    shortest = min(event.end - event.start for event in timeline.events)
    unit = max(shortest / 2, timeline.seconds / (WIDTH / 4))
    drawn = render_text(timeline, unit).splitlines()[:-1]
    shown = min(one.accumulation, 2 * one.stages)
    return "\n".join(
        [f"{shown} of {one.accumulation} micro-batches, {1e3 * unit:.3g} ms a column", *drawn]
    )


def nothing_fits(found: Found, machine: Machine) -> str:
    if found.smallest is None:
        return "There is no way to divide this batch over these devices."
    one, memory = found.smallest
    return (
        f"Nothing fits into {machine.memory / 1e9:.3g} GB: of "
        f"{format_count(found.too_large, 'way')}, the smallest takes "
        f"{memory / 1e9:.3g} GB on a device ("
        f"{format_count(one.replicas, 'replica')} x {format_count(one.stages, 'stage')}, "
        f"micro-batch {one.micro_batch}"
        f"{', ' + one.schedule if one.schedule else ''}{', recomputing' * one.recompute}). "
        "Pass devices with more memory, more devices on a host, or a lower --precision."
    )
