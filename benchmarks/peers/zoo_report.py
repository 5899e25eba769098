"""Page and raw figures of the zoo."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.peers.peers import HEADLINE, MARKS, PEERS, PRECISIONS, PRODUCTS_LIMIT
from benchmarks.peers.profile import table as profile_table
from benchmarks.peers.report import (
    Rows,
    Spread,
    best_peer,
    figure,
    figures_file,
    participants,
    quietness,
    speedup,
    step_seconds,
    table,
)
from benchmarks.peers.suites import WORKLOADS

AHEAD = 1.2
"""The speedup over the best peer that every row should reach."""
KINDS = {"training": "Training", "prediction": "Prediction"}


def page(result: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    settings = result["settings"]
    seconds = settings["seconds_per_turn"]
    length = f"about {seconds:g} s" if seconds else "a few steps, **only to see that it works**"
    parts = [
        f"# Convoy on networks that it was not tuned for, {result['date']}",
        f"Commit {result['commit']}; rounds: {settings['rounds']}, with turns of {length}; "
        f"precisions, interleaved: {', '.join(settings['precisions'])}. Made by `make bench-zoo`.",
        table(["", ""], result["machine"].items()),
        quietness(result),
        "The *speedup* is the time of the best Keras backend, divided by that of Convoy within "
        "each round: median [smallest to largest]. Above 1, Convoy is faster. *By CPU time* is "
        "the same with the CPU time of all threads, of the backend that is best in it: it depends "
        f"less on other programs. Speedups below {AHEAD} are **bold**.",
    ]
    for precision in PRECISIONS:
        chosen = {n: r[precision] for n, r in result["workloads"].items() if r.get(precision)}
        if chosen:
            parts += [_summary(precision, chosen)]
            for kind in KINDS:
                parts += _section(result, kind, precision, chosen)
    parts += _profiles(result)
    parts += ["## Peers", participants(result)]
    if result["dropped"]:
        parts += ["## Dropped", table(["peer", "network", "reason"], result["dropped"])]
    return "\n\n".join(parts) + "\n"


def best_speedup(rows: Rows, quantity: str = "seconds") -> Spread | None:
    """Return Convoy's speedup over the best peer, or nothing without either of them."""
    best = best_peer(rows, quantity)
    return (
        None
        if best is None or HEADLINE not in rows
        else speedup(rows[HEADLINE], rows[best], quantity)
    )


def _summary(precision: str, chosen: dict[str, Rows]) -> str:
    lines = []
    for kind, title in KINDS.items():
        of_kind = [rows for name, rows in chosen.items() if WORKLOADS[name].kind == kind]
        for quantity, words in (("seconds", "time"), ("cpu_seconds", "CPU time")):
            found = [ratio.middle for rows in of_kind if (ratio := best_speedup(rows, quantity))]
            if found:
                lines.append(
                    [
                        f"{title}, by {words}",
                        len(found),
                        figure(statistics.geometric_mean(found)),
                        figure(min(found)),
                        sum(ratio >= AHEAD for ratio in found),
                        sum(ratio < 1 for ratio in found),
                    ]
                )
    head = ["", "networks", "geometric mean", "smallest", f"{AHEAD} or more", "below 1"]
    return f"## Speedup over the best Keras backend in {precision}\n\n" + table(head, lines)


def _section(
    result: dict[str, Any], kind: str, precision: str, chosen: dict[str, Rows]
) -> list[str]:
    chosen = {name: rows for name, rows in chosen.items() if WORKLOADS[name].kind == kind}
    if not chosen:
        return []
    columns = [name for name in PEERS if any(name in rows for rows in chosen.values())]
    shown = [name for name in columns if name not in MARKS]
    ratios, starts = [], []
    for name, rows in chosen.items():
        work = WORKLOADS[name]
        best = best_peer(rows)
        cells = [f"{work.title}, batch {work.batch}", PEERS[best].title if best else "-"]
        cells += [_marked(best_speedup(rows, quantity)) for quantity in ("seconds", "cpu_seconds")]
        cells += [_milliseconds(rows, peer) for peer in shown]
        if PRODUCTS_LIMIT in columns:
            cells.append(_share_of_limit(rows))
        ratios.append(cells)
        start = result["starts"][name].get(precision, {})
        starts.append([work.title, *(_start(start.get(p)) for p in shown)])
    titles = [PEERS[name].title for name in shown]
    words = f"{KINDS[kind]} in {precision}"
    limit_head = ["of the limit"] if PRODUCTS_LIMIT in columns else []
    return [
        f"## {words}",
        "Of each framework: milliseconds per step (CPU milliseconds of all threads). *Of the "
        "limit*: the time of the network's convolutions and matrix products alone, as PyTorch "
        "calls oneDNN for them, as a part of Convoy's time.",
        table(["", "best backend", "speedup", "by CPU time", *titles, *limit_head], ratios),
        f"## {words}: start and memory",
        "Seconds from the start of the process to the end of the first step, without kept "
        "programs (CPU seconds of all threads); the largest physical memory until then, and in "
        "the steps after it, in MiB.",
        table(["", *titles], starts),
    ]


def _marked(ratio: Spread | None) -> str:
    if ratio is None:
        return "-"
    return ratio.text() if ratio.middle >= AHEAD else f"**{ratio.text()}**"


def _share_of_limit(rows: Rows) -> str:
    if not {HEADLINE, PRODUCTS_LIMIT} <= rows.keys():
        return "-"
    return f"{speedup(rows[HEADLINE], rows[PRODUCTS_LIMIT]).middle:.0%}"


def _milliseconds(rows: Rows, peer: str) -> str:
    if peer not in rows:
        return "-"
    wall, cpu = (
        figure(1e3 * statistics.median(step_seconds(rows[peer], quantity)))
        for quantity in ("seconds", "cpu_seconds")
    )
    return f"{wall} ({cpu})"


def _start(start: dict[str, float] | None) -> str:
    if start is None:
        return "-"
    seconds, cpu = (figure(start[name]) for name in ("seconds", "cpu_seconds"))
    first, later = (f"{start[name] / 2**20:,.0f}" for name in ("peak_bytes", "turns_peak_bytes"))
    return f"{seconds} ({cpu}); {first}, {later}"


def _profiles(result: dict[str, Any]) -> list[str]:
    parts = []
    for name, found in result["profiles"].items():
        work = WORKLOADS[name]
        parts.append(f"### {work.title}, {KINDS[work.kind].lower()}")
        parts.append(f"Failed: {found['failed']}" if "failed" in found else profile_table(found))
    if not parts:
        return []
    intro = f"Float32, Convoy alone, of the rows with a speedup below {AHEAD}."
    return ["## Where the time goes", intro, *parts]


def write(result: dict[str, Any], folder: Path) -> Path:
    """Write page and figures, named by the date, and return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = figures_file(result, folder, "zoo")
    path = figures.with_suffix(".md")
    path.write_text(page(result))
    figures.write_text(json.dumps(result, indent=1) + "\n")
    return path
