"""A timeline as text: a line for each device, a column for each unit of time."""

from __future__ import annotations

from convoy.pipeline.simulate import Timeline

IDLE = "."


def draw(timeline: Timeline, unit: float = 1.0) -> str:
    """Draw a timeline.

    An action is written once and goes on to the right; dots are time in which a device waits.

    Args:
        timeline: what happened.
        unit: the time of a column.
    """
    width = 1 + max((len(str(event.action)) for event in timeline.events), default=1)
    columns = round(timeline.seconds / unit)
    lines = []
    for device in range(timeline.devices):
        cells = [IDLE.ljust(width)] * columns
        for event in timeline.events:
            if event.device != device:
                continue
            first, last = round(event.start / unit), round(event.end / unit)
            for column in range(first, last):
                text = str(event.action) if column == first else "-" * (width - 1)
                cells[column] = text.ljust(width)
        lines.append(f"device {device}  " + "".join(cells).rstrip())
    # What was recorded has a beginning; on paper, time has no unit.
    was_recorded = timeline.began > 0
    taken = (
        f"{1000 * timeline.seconds:,.1f} ms"
        if was_recorded
        else f"{timeline.seconds:g} units of time"
    )
    lines.append(f"bubble {timeline.bubble:.1%}, {taken}")
    return "\n".join(lines)
