"""Page, chart and raw figures of a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import (
    BFLOAT16,
    CORES,
    FLOAT16,
    FLOAT32,
    HEADLINE,
    LIMIT,
    MARKS,
    PEERS,
    PRECISIONS,
    STOCK,
)
from benchmarks.peers.suites import WORKLOADS

# The targets: speedup over the best peer and over Keras on JAX, fraction of the limit, and speedup
# of Convoy in 16 bits over itself in float32.
AHEAD_OF_BEST = {
    (BFLOAT16, "resnet8"): 1.2,
    (BFLOAT16, "resnet20-wide"): 1.2,
    (BFLOAT16, "resnet50"): 1.2,
}
AHEAD_OF_STOCK = 2.5
SHARE_OF_LIMIT = {(FLOAT32, "resnet50"): 0.75}
AHEAD_OF_FLOAT32 = {BFLOAT16: 1.0, FLOAT16: 1 / 1.1}
AHEAD_OF_FLOAT32_ROWS = {(BFLOAT16, "resnet50"): 1.5}
QUIET = 0.05

Turns = Sequence[dict[str, float]]
Rows = dict[str, list[dict[str, float]]]
"""The turns of each peer in one precision."""


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest value over rounds."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        known = list(values)
        return cls(statistics.median(known), min(known), max(known))

    def text(self) -> str:
        return f"{figure(self.middle)} [{figure(self.low)} to {figure(self.high)}]"


def figure(value: float) -> str:
    """Return a number with three significant digits, or as a whole number from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def step_seconds(turns: Turns, quantity: str = "seconds") -> list[float]:
    """Return the seconds of a step in each round, or its `cpu_seconds`."""
    return [turn[quantity] / turn["steps"] for turn in turns]


def speedup(ours: Turns, theirs: Turns, quantity: str = "seconds") -> Spread:
    """Return our speedup, from the two turns of each round, in seconds or `cpu_seconds`.

    Ratios are taken within a round, where both saw the same machine, and not between medians.
    """
    our_rounds, their_rounds = (
        dict(zip((turn["round"] for turn in turns), step_seconds(turns, quantity), strict=True))
        for turns in (ours, theirs)
    )
    common = our_rounds.keys() & their_rounds.keys()
    return Spread.of(their_rounds[number] / our_rounds[number] for number in common)


def others_in(rows: Rows) -> list[str]:
    """Return the peers that are not ours and not a limit."""
    return [name for name in rows if name not in (HEADLINE, CORES, *MARKS)]


def best_peer(rows: Rows, quantity: str = "seconds") -> str | None:
    """Return the fastest peer that is not ours and not the limit."""
    return min(
        others_in(rows),
        key=lambda name: statistics.median(step_seconds(rows[name], quantity)),
        default=None,
    )


def lost_rows(workloads: dict[str, dict[str, Rows]]) -> list[list[str]]:
    """Return workload, precision, peer and speedup wherever a peer is faster than Convoy."""
    lost = []
    for name, by_precision in workloads.items():
        for precision, rows in by_precision.items():
            for peer in others_in(rows) if HEADLINE in rows else ():
                ratio = speedup(rows[HEADLINE], rows[peer])
                if ratio.middle < 1:
                    row = [WORKLOADS[name].title, precision, PEERS[peer].title, ratio.text()]
                    lost.append(row)
    return lost


def verdicts(name: str, by_precision: dict[str, Rows], precision: str = FLOAT32) -> list[str]:
    """Return the comparison of one workload with each target, in one precision."""
    rows = by_precision[precision]
    if HEADLINE not in rows:
        return ["Convoy has no figure"]
    ours, lines, key = rows[HEADLINE], [], (precision, name)
    best = best_peer(rows)
    if best is not None:
        ratio, title = speedup(ours, rows[best]), f"the best peer, {PEERS[best].title}"
        lines.append(_against(title, ratio, AHEAD_OF_BEST.get(key, 1.0)))
    if STOCK in rows:
        lines.append(_against(PEERS[STOCK].title, speedup(ours, rows[STOCK]), AHEAD_OF_STOCK))
    wide = by_precision.get(FLOAT32, {}).get(HEADLINE)
    if precision in AHEAD_OF_FLOAT32 and wide and WORKLOADS[name].kind == "training":
        aim = AHEAD_OF_FLOAT32_ROWS.get(key, AHEAD_OF_FLOAT32[precision])
        lines.append(_against("Convoy in float32", speedup(ours, wide), aim))
    if LIMIT in rows:
        share, aim = speedup(ours, rows[LIMIT]).middle, SHARE_OF_LIMIT.get(key)
        text = f"{share:.0%} of the convolution limit"
        if aim is not None and share < aim:
            text += f" (**short** of {aim:.0%} by {aim - share:.0%})"
        lines.append(text)
    return lines


def _against(whom: str, ratio: Spread, aim: float) -> str:
    text = f"{ratio.middle:.2f} times {whom}"
    if ratio.middle >= aim:
        return text
    return f"{text} (**short** of {aim:.1f} by {1 - ratio.middle / aim:.0%})"


def page(result: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    settings = result["settings"]
    seconds = settings["seconds_per_turn"]
    length = f"about {seconds:g} s" if seconds else "a few steps, **only to see that it works**"
    parts = [
        f"# Convoy beside its peers, {result['date']}",
        f"Commit {result['commit']}; rounds: {settings['rounds']}, with turns of {length}; "
        f"precisions, interleaved: {', '.join(settings['precisions'])}. "
        "Made by `make bench-peers`.",
        table(["", ""], result["machine"].items()),
        quietness(result),
        f"![Images per second]({result['date']}-peers.png)",
    ]
    for kind in ("training", "inference"):
        of_kind = {n: r for n, r in result["workloads"].items() if WORKLOADS[n].kind == kind}
        for precision in PRECISIONS:
            chosen = {name: found for name, found in of_kind.items() if found.get(precision)}
            if chosen:
                parts += _section(kind, precision, chosen)
    parts += _by_precision(result["workloads"])
    lost = lost_rows(result["workloads"])
    parts += ["## Rows that Convoy loses"]
    parts += [table(["", "precision", "peer", "speedup of Convoy"], lost) if lost else "None."]
    parts += ["## Peers", participants(result)]
    if result["dropped"]:
        parts += ["## Dropped", table(["peer", "workload", "reason"], result["dropped"])]
    return "\n\n".join(parts) + "\n"


def _section(kind: str, precision: str, chosen: dict[str, dict[str, Rows]]) -> list[str]:
    columns = [name for name in PEERS if any(name in r[precision] for r in chosen.values())]
    others = [name for name in columns if name != HEADLINE]
    titles = [PEERS[name].title for name in columns]
    ratios, times, aims = [], [], []
    for name, by_precision in chosen.items():
        title, rows = WORKLOADS[name].title, by_precision[precision]
        times.append([title, *(_milliseconds(rows.get(column)) for column in columns)])
        if HEADLINE not in rows:
            continue
        ours = rows[HEADLINE]
        rate = Spread.of(WORKLOADS[name].batch / seconds for seconds in step_seconds(ours))
        cells = [speedup(ours, rows[o]).text() if o in rows else "-" for o in others]
        ratios.append([title, figure(rate.middle), *cells])
        aims.append([title, "; ".join(verdicts(name, by_precision, precision))])
    words = {"training": "Training", "inference": "Inference"}[kind] + f" in {precision}"
    parts = [
        f"## {words}: speedup of Convoy",
        "Convoy's images per second divided by the peer's, within each round: median "
        "[smallest to largest]. Above 1, Convoy is faster.",
        table(["", "Convoy, images/s", *titles[1:]], ratios),
        f"## {words}: milliseconds per step",
        table(["", *titles], times),
        f"## {words}: targets",
        table(["", "Convoy reaches"], aims),
    ]
    if CORES in columns:
        parts.insert(3, _CORES_NOTE)
    return parts


def _by_precision(workloads: dict[str, dict[str, Rows]]) -> list[str]:
    """Return the section with each peer's speed in 16 bits relative to its own in float32."""
    columns = [
        (peer, precision) for peer in PEERS for precision in PRECISIONS if precision != FLOAT32
    ]
    rows = []
    for name, found in workloads.items():
        cells = []
        for peer, precision in columns:
            half, wide = (found.get(one, {}).get(peer) for one in (precision, FLOAT32))
            cells.append(speedup(half, wide).text() if half and wide else "-")
        rows.append([WORKLOADS[name].title, *cells])
    used = [at for at in range(len(columns)) if any(row[at + 1] != "-" for row in rows)]
    if not used:
        return []
    titles = [f"{PEERS[columns[at][0]].title}, {columns[at][1]}" for at in used]
    return [
        "## Speedup of 16 bits over float32",
        "Each framework's speed in a precision divided by its own speed in float32, within each "
        "round.",
        table(["", *titles], [[row[0], *(row[at + 1] for at in used)] for row in rows]),
    ]


_CORES_NOTE = (
    "*Convoy* is one device, as `convoy.Strategy()` gives it. *One device a core* divides the same "
    "batch over `Strategy(devices=<cores>)`: there, batch normalisation uses the statistics of "
    "each device's share, so networks with it do not compute quite the same. *Convolutions alone* "
    "is no peer: it is every convolution of the network by itself, with both gradients, by oneDNN "
    "as PyTorch calls it, and nothing else; Convoy's part of that speed is what the column shows. "
    "In the smallest networks it is mostly the cost of PyTorch's calls, and no limit."
)


def _milliseconds(turns: Turns | None) -> str:
    return Spread.of(1e3 * s for s in step_seconds(turns)).text() if turns else "-"


def quietness(result: dict[str, Any]) -> str:
    """Return how much of the machine other programs used."""
    shares = [
        turn["others"]
        for by_precision in result["workloads"].values()
        for rows in by_precision.values()
        for turns in rows.values()
        for turn in turns
    ]
    if not shares:
        return "Nothing was measured."
    share = statistics.mean(shares)
    text = f"Everything else on the machine took {share:.0%} of its cores during the turns."
    return text if share <= QUIET else f"{text} **The machine was not quiet: do not cite this.**"


def participants(result: dict[str, Any]) -> str:
    """Return the versions and the notes of all peers as a table."""
    rows = []
    for name, entry in sorted(result["peers"].items(), key=lambda item: list(PEERS).index(item[0])):
        versions = ", ".join(f"{package} {v}" for package, v in entry["versions"].items())
        rows.append([PEERS[name].title, versions, entry["note"]])
    return table(["peer", "versions", "note"], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(c).replace("|", "/") for c in line) + " |" for line in lines
    )


def write(result: dict[str, Any], folder: Path) -> Path:
    """Write page, figures and chart, named by the date, and return the page's path."""
    from benchmarks.peers import chart

    folder.mkdir(parents=True, exist_ok=True)
    figures = figures_file(result, folder, "peers")
    path = figures.with_suffix(".md")
    path.write_text(page(result))
    figures.write_text(json.dumps(result, indent=1) + "\n")
    chart.draw(result, figures.with_suffix(".png"))
    return path


def figures_file(result: dict[str, Any], folder: Path, suite: str) -> Path:
    """Return the path of the raw figures of a run of a suite."""
    return folder / f"{result['date']}-{suite}.json"
