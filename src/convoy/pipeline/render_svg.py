"""A timeline as a picture: a row for each device, a box for each action."""

from __future__ import annotations

from convoy.pipeline.schedule import Kind
from convoy.pipeline.simulate import Timeline

COLOURS = {
    Kind.FORWARD: "#7db2e8",
    Kind.BACKWARD: "#f2b366",
    Kind.BACKWARD_INPUT: "#f2b366",
    Kind.BACKWARD_WEIGHTS: "#9ccb86",
}
ROW, GAP, LEFT, TEXT = 26, 6, 74, 12


def picture(timeline: Timeline, width: int = 760) -> str:
    """Return a timeline as SVG; white space in a row is time in which the device waits.

    Args:
        timeline: what happened.
        width: of the picture.

    Example:
    ```python
    Path("timeline.svg").write_text(picture(simulate(generate("1f1b", 4, 8))))
    ```
    """
    height = timeline.devices * (ROW + GAP) + GAP
    scale = (width - LEFT - GAP) / (timeline.seconds or 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="{TEXT}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for device in range(timeline.devices):
        middle = GAP + device * (ROW + GAP) + ROW / 2 + TEXT / 3
        parts.append(f'<text x="{GAP}" y="{middle:.0f}">device {device}</text>')
    for event in timeline.events:
        x, top = LEFT + event.start * scale, GAP + event.device * (ROW + GAP)
        box = (event.end - event.start) * scale
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{box:.1f}" height="{ROW}" rx="3" '
            f'fill="{COLOURS[event.action.kind]}" stroke="white"/>'
        )
        parts.append(
            f'<text x="{x + box / 2:.1f}" y="{top + ROW / 2 + TEXT / 3:.0f}" '
            f'text-anchor="middle">{event.action.micro_batch}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
