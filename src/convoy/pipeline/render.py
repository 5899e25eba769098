"""Rendering of timelines, as text and as SVG."""

from convoy.pipeline.schedule import Kind
from convoy.pipeline.timeline import Timeline

IDLE = "."
COLOURS = {
    Kind.FORWARD: "#7db2e8",
    Kind.BACKWARD: "#f2b366",
    Kind.BACKWARD_INPUT: "#f2b366",
    Kind.BACKWARD_WEIGHTS: "#9ccb86",
}
LABELS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "input gradient",
    Kind.BACKWARD_WEIGHTS: "weight gradient",
}
COLUMNS = 40
"""Columns of a measured timeline as text."""
ROW, GAP, LEFT, TEXT = 26, 6, 74, 12
"""Pixels: height of a row, space between rows, width of the labels, size of the text."""


def render_text(timeline: Timeline, unit: float = 1.0) -> str:
    """Return a timeline as text: a line for each device, a column for each unit of time.

    An action is written once and continued with dashes; a dot is a unit in which a device waits.

    Args:
        timeline: timeline to render.
        unit: duration of a column.
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
    return "\n".join([*lines, _summary(timeline)])


def _summary(timeline: Timeline) -> str:
    # A simulated timeline begins at 0, and its time has no unit.
    measured = timeline.began > 0
    duration = (
        f"{1000 * timeline.seconds:,.1f} ms" if measured else f"{timeline.seconds:g} units of time"
    )
    return f"bubble {timeline.bubble:.1%}, {duration}"


def display_data(timeline: Timeline) -> dict[str, str]:
    """Return a timeline as the output of a notebook cell: an image, and text for terminals."""
    unit = timeline.seconds / COLUMNS if timeline.began > 0 else 1.0
    return {
        "image/svg+xml": render_svg(timeline, caption=True),
        "text/plain": render_text(timeline, unit or 1.0),
    }


def render_svg(timeline: Timeline, width: int = 760, *, caption: bool = False) -> str:
    """Return a timeline as SVG: a row for each device, a box for each action.

    White space in a row is time in which the device waits.

    Args:
        timeline: timeline to render.
        width: width of the image in pixels.
        caption: whether to write the colours, the bubble and the duration below.

    Example:
    ```python
    timeline = convoy.pipeline.simulate(convoy.pipeline.generate("1f1b", 4, 8))
    Path("timeline.svg").write_text(convoy.pipeline.render_svg(timeline))
    ```
    """
    bottom = timeline.devices * (ROW + GAP) + GAP
    height = bottom + (ROW if caption else 0)
    scale = (width - LEFT - GAP) / (timeline.seconds or 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="{TEXT}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for device in range(timeline.devices):
        middle = GAP + device * (ROW + GAP) + ROW / 2 + TEXT / 3
        parts.append(f'<text x="{GAP}" y="{middle:.0f}">device {device}</text>')
    if caption:
        parts += _caption(timeline, bottom + TEXT)
    for event in timeline.events:
        x, top = LEFT + event.start * scale, GAP + event.device * (ROW + GAP)
        box = (event.end - event.start) * scale
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{box:.1f}" height="{ROW}" rx="3" '
            f'fill="{COLOURS[event.action.kind]}" stroke="white"/>'
        )
        label = str(event.action.micro_batch)
        # A digit is about half as wide as it is high.
        if len(label) * TEXT / 2 <= box:
            parts.append(
                f'<text x="{x + box / 2:.1f}" y="{top + ROW / 2 + TEXT / 3:.0f}" '
                f'text-anchor="middle">{label}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _caption(timeline: Timeline, y: float) -> list[str]:
    """Return the colours of the kinds that occur, and the bubble and duration."""
    kinds = {event.action.kind for event in timeline.events}
    parts, x = [], LEFT
    for kind in (kind for kind in Kind if kind in kinds):
        text = LABELS[kind]
        parts.append(
            f'<rect x="{x}" y="{y - TEXT + 2}" width="{TEXT}" height="{TEXT}" rx="3" '
            f'fill="{COLOURS[kind]}"/>'
        )
        parts.append(f'<text x="{x + TEXT + GAP}" y="{y}">{text}</text>')
        x += TEXT + 3 * GAP + len(text) * TEXT * 6 // 10
    return [*parts, f'<text x="{x}" y="{y}">{_summary(timeline)}</text>']
