"""Chart of a run: a panel for each workload and precision, a bar for each peer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import CORES, HEADLINE, LIMIT, PEERS
from benchmarks.peers.report import Spread, figure, step_seconds
from benchmarks.peers.suites import WORKLOADS

COLUMNS = 3
COLOURS = {HEADLINE: "#c2410c", CORES: "#fdba74", LIMIT: "#e5e7eb"}
PEER_COLOUR = "#64748b"


def draw(result: dict[str, Any], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        (name, precision, rows)
        for name, by_precision in result["workloads"].items()
        for precision, rows in by_precision.items()
        if rows
    ]
    if not panels:
        return
    height = math.ceil(len(panels) / COLUMNS)
    figure_, axes = pyplot.subplots(
        height, COLUMNS, figsize=(5 * COLUMNS, 2.9 * height), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(axis, *panel)
    figure_.suptitle(f"Images per second, {result['date']}, {result['machine']['CPU']}")
    figure_.savefig(picture, dpi=110)
    pyplot.close(figure_)


def _panel(axis: Any, name: str, precision: str, rows: dict[str, Any]) -> None:
    """Draw one workload in one precision; the black line on a bar spans its rounds."""
    work = WORKLOADS[name]
    shown = [peer for peer in PEERS if peer in rows]
    spreads = [Spread.of(work.batch / s for s in step_seconds(rows[peer])) for peer in shown]
    middles = [spread.middle for spread in spreads]
    reach = [
        [spread.middle - spread.low for spread in spreads],
        [spread.high - spread.middle for spread in spreads],
    ]
    colours = [COLOURS.get(peer, PEER_COLOUR) for peer in shown]
    axis.barh([PEERS[peer].title for peer in shown], middles, xerr=reach, color=colours)
    for index, spread in enumerate(spreads):
        axis.text(spread.high, index, f" {figure(spread.middle)}", va="center", fontsize=8)
    axis.invert_yaxis()
    axis.set_title(f"{work.title}, {precision}", fontsize=10)
    axis.set_xlim(0, 1.2 * max(spread.high for spread in spreads))
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
