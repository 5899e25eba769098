"""Page, chart and raw figures of a run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import CORES, HEADLINE, LIMIT, PEERS, STOCK
from benchmarks.peers.workloads import WORKLOADS

# The targets: speedup over the best peer and over Keras on JAX, fraction of the limit.
AHEAD_OF_BEST = 1.0
AHEAD_OF_STOCK = 2.5
SHARE_OF_LIMIT = {"resnet50": 0.75}
QUIET = 0.05


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


def step_seconds(turns: Sequence[dict[str, float]]) -> list[float]:
    """Return the seconds of a step in each round."""
    return [turn["seconds"] / turn["steps"] for turn in turns]


def speedup(ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]) -> Spread:
    """Return our speedup, from the two turns of each round.

    Ratios are taken within a round, where both saw the same machine, and not between medians.
    """
    pairs = zip(step_seconds(ours), step_seconds(theirs), strict=False)
    return Spread.of(their / our for our, their in pairs)


def best_peer(rows: dict[str, list[dict[str, float]]]) -> str | None:
    """Return the fastest peer that is not ours and not the limit."""
    peers = [name for name in rows if name not in (HEADLINE, CORES, LIMIT)]
    return min(peers, key=lambda name: statistics.median(step_seconds(rows[name])), default=None)


def verdicts(name: str, rows: dict[str, list[dict[str, float]]]) -> list[str]:
    """Return the comparison of one workload with each target."""
    if HEADLINE not in rows:
        return ["Convoy has no figure"]
    ours, lines = rows[HEADLINE], []
    best = best_peer(rows)
    if best is not None:
        ratio = speedup(ours, rows[best])
        lines.append(_against(f"the best peer, {PEERS[best].title}", ratio, AHEAD_OF_BEST))
    if STOCK in rows:
        lines.append(_against(PEERS[STOCK].title, speedup(ours, rows[STOCK]), AHEAD_OF_STOCK))
    if LIMIT in rows:
        share, aim = speedup(ours, rows[LIMIT]).middle, SHARE_OF_LIMIT.get(name)
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
        "float32. Made by `make bench-peers`.",
        table(["", ""], result["machine"].items()),
        _quietness(result),
        f"![Images per second]({result['date']}-peers.png)",
    ]
    for kind in ("training", "inference"):
        chosen = {n: r for n, r in result["workloads"].items() if WORKLOADS[n].kind == kind and r}
        if chosen:
            parts += _section(kind, chosen)
    parts += ["## Peers", _participants(result)]
    if result["dropped"]:
        parts += ["## Dropped", table(["peer", "workload", "reason"], result["dropped"])]
    return "\n\n".join(parts) + "\n"


def _section(kind: str, chosen: dict[str, Any]) -> list[str]:
    columns = [name for name in PEERS if any(name in rows for rows in chosen.values())]
    others = [name for name in columns if name != HEADLINE]
    titles = [PEERS[name].title for name in columns]
    ratios, times, aims = [], [], []
    for name, rows in chosen.items():
        title = WORKLOADS[name].title
        times.append([title, *(_milliseconds(rows.get(column)) for column in columns)])
        if HEADLINE not in rows:
            continue
        ours = rows[HEADLINE]
        rate = Spread.of(WORKLOADS[name].batch / seconds for seconds in step_seconds(ours))
        cells = [speedup(ours, rows[o]).text() if o in rows else "-" for o in others]
        ratios.append([title, figure(rate.middle), *cells])
        aims.append([title, "; ".join(verdicts(name, rows))])
    words = {"training": "Training", "inference": "Inference"}[kind]
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


_CORES_NOTE = (
    "*Convoy* is one device, as `convoy.Strategy()` gives it. *One device a core* divides the same "
    "batch over `Strategy(devices=<cores>)`: there, batch normalisation uses the statistics of "
    "each device's share, so networks with it do not compute quite the same. *Convolutions alone* "
    "is no peer: it is every convolution of the network by itself, with both gradients, by oneDNN "
    "as PyTorch calls it, and nothing else; Convoy's part of that speed is what the column shows. "
    "In the smallest networks it is mostly the cost of PyTorch's calls, and no limit."
)


def _milliseconds(turns: Sequence[dict[str, float]] | None) -> str:
    return Spread.of(1e3 * s for s in step_seconds(turns)).text() if turns else "-"


def _quietness(result: dict[str, Any]) -> str:
    shares = [
        turn["others"]
        for rows in result["workloads"].values()
        for turns in rows.values()
        for turn in turns
    ]
    if not shares:
        return "Nothing was measured."
    share = statistics.mean(shares)
    text = f"Everything else on the machine took {share:.0%} of its cores during the turns."
    return text if share <= QUIET else f"{text} **The machine was not quiet: do not cite this.**"


def _participants(result: dict[str, Any]) -> str:
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
    stem = folder / f"{result['date']}-peers"
    path = stem.with_suffix(".md")
    path.write_text(page(result))
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    chart.draw(result, stem.with_suffix(".png"))
    return path
