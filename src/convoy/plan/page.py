"""A plan for several numbers of devices, as a page."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from convoy.bench.results import git_commit
from convoy.plan import show
from convoy.plan.machine import Machine
from convoy.plan.profile import Profile
from convoy.plan.search import Found
from convoy.units import format_number
from convoy.versions import installed_versions


def markdown(
    options: argparse.Namespace, profile: Profile, results: Sequence[tuple[Machine, Found]]
) -> str:
    """Return the page: what it would give, and what that rests on."""
    today = datetime.now(UTC).date()
    versions = installed_versions()
    lines = [
        f"# {options.model} on {options.devices[0]} to {options.devices[-1]} devices, {today}",
        "",
        "Predicted, not run. `convoy plan` simulates one pipeline, or one replica, and adds what "
        "the exchange of gradients takes.",
        "",
        f"    convoy plan {shlex.join(sys.argv[2:])}",
        "",
        f"Commit {git_commit()[:7]}, jax {versions['jax']}, keras {versions['keras']}.",
        "",
        "| devices | hosts | " + " | ".join(show.COLUMNS) + " | of linear |",
        "|---" * (len(show.COLUMNS) + 3) + "|",
    ]
    first: float | None = None
    for machine, found in results:
        hosts = -(-machine.devices // machine.per_host)
        if not found.best:
            lines.append(f"| {machine.devices} | {hosts} | nothing fits |")
            continue
        best = found.best[0]
        each = best.throughput / machine.devices
        first = first or each
        cells = [str(machine.devices), str(hosts), *show.row(best), f"{each / first:.0%}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        f"*Of linear* is the throughput of a device beside that with {results[0][0].devices}. "
        f"{options.global_batch:,} samples per weight update throughout.",
        "",
        "## Assumptions",
        "",
        "```",
        show.assumptions(results[-1][0], profile.source),
        "```",
        "",
        "| micro-batch | ms per step, all devices of this machine at work |",
        "|---|---|",
        *(f"| {samples} | {format_number(1e3 * seconds)} |" for samples, seconds in profile.points),
        "",
        "- All devices and hosts are alike, and nothing else runs on them.",
        "- Other devices of a host take no more from each other than those here did.",
        "- Gradients are exchanged after the last micro-batch, within a host and then between "
        "hosts: 2 (n - 1) / n of their bytes each, and 2 log2(hosts) messages one after the other.",
        "- Micro-batches between measured sizes lie on a line.",
    ]
    return "\n".join(lines) + "\n"
