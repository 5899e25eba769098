"""Training of the same networks with Convoy and its peers, in turns, and a page of the results.

    make bench-peers
    .venv/bin/python -m benchmarks.peers.run --workloads mnist resnet50 --peers torch --rounds 3
    .venv/bin/python -m benchmarks.peers.run --precisions bfloat16 --workloads resnet50

Every peer in every precision is a process, in an environment that the first run builds (about
5 GB). For each workload all of them start, compile and warm up. Then they take turns, round by
round, so that drift of the machine affects all, and only one of them runs at any time. Expected:
about 90 minutes on two cores, and a page, its figures and a chart in `benchmarks/results`.

The page is written after every workload. `--resume` continues a run that was interrupted: it skips
the workloads that the figures of the same day, commit and settings contain.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers import environments, machine, report
from benchmarks.peers.peers import (
    BFLOAT16,
    FLOAT32,
    PEERS,
    PRECISIONS,
    Contender,
    contenders,
)
from benchmarks.peers.turns import Outcome, Rounds
from benchmarks.peers.workloads import WORKLOADS, Workload

RESULTS = environments.ROOT / "benchmarks" / "results"
QUICK_RESULTS = environments.ROOT / "runs" / "peers-quick"
LOGS = environments.FOLDER / "logs"
# The time to start, compile and warm up the peers of a workload, for the estimate.
PREPARE_SECONDS = 60.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=[FLOAT32, BFLOAT16])
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer (default: 5)")
    parser.add_argument("--seconds-per-turn", type=float, default=2.5, help="default: 2.5")
    parser.add_argument("--output", type=Path, help=f"default: {RESULTS.relative_to(Path.cwd())}")
    parser.add_argument(
        "--quick", action="store_true", help="one turn of a few steps each, into runs/peers-quick"
    )
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds_per_turn = 1, 0.0
    options.output = options.output or (QUICK_RESULTS if options.quick else RESULTS)
    return options


class Progress:
    """Prints progress with the elapsed and the remaining time."""

    def __init__(self, workloads: list[Workload], options: argparse.Namespace) -> None:
        self.start = time.perf_counter()
        self.ahead = len(workloads) * options.rounds
        self.rounds = options.rounds
        turns = len(options.peers) * len(options.precisions)
        self.expected = turns * options.seconds_per_turn + PREPARE_SECONDS / options.rounds
        self.done = 0

    def log(self, text: str) -> None:
        minutes, seconds = divmod(int(time.perf_counter() - self.start), 60)
        print(f"[{minutes:2}:{seconds:02}] {text}", flush=True)

    def round_done(self, text: str) -> None:
        """Count a round; the remaining time is estimated from past rounds and from the settings."""
        self.done += 1
        elapsed = time.perf_counter() - self.start
        pace = (elapsed + self.ahead * self.expected) / (self.done + self.ahead)
        self.ahead -= 1
        self.log(f"{text}; about {max(1, round(pace * self.ahead / 60))} min left")


def build_environments(chosen: Iterable[Contender]) -> dict[str, str]:
    """Build the environments. Return the peers that must be dropped, with the reasons."""
    peers = {one.peer.name: one.peer for one in chosen}.values()
    problems = {name: environments.build(name) for name in {peer.environment for peer in peers}}
    readers = [name for name in ("onnxruntime", "openvino") if problems.get(name) == ""]
    if readers:
        problems |= dict.fromkeys(readers, export_onnx())
    return {peer.name: problems[peer.environment] for peer in peers if problems[peer.environment]}


def export_onnx() -> str:
    """Write the models for ONNX Runtime and OpenVINO by PyTorch. Return the problem, if any."""
    problem = environments.build("torch")
    if problem:
        return f"PyTorch writes its models, and {problem}"
    command = [str(environments.python("torch")), "-m", "benchmarks.peers.export_onnx"]
    done = subprocess.run(command, cwd=environments.ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return f"its models could not be written: {done.stderr.strip().splitlines()[-1]}"


def measure(
    workload: Workload, chosen: list[Contender], options: argparse.Namespace, progress: Progress
) -> Outcome:
    rounds = Rounds(workload, options.seconds_per_turn, progress.log)
    progress.log(f"{workload.title}: {len(chosen)} processes compile and warm up")
    try:
        rounds.start(chosen, LOGS)
        rounds.calibrate()
        for number in range(options.rounds):
            rounds.run_round(number)
            progress.round_done(f"{workload.name}, round {number + 1} of {options.rounds}")
    finally:
        rounds.end()
    return rounds.outcome


def open_result(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a new run, or of the interrupted run that is continued.

    Raises:
        SystemExit: if the interrupted run had another commit or other settings.
    """
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "settings": {
            "rounds": options.rounds,
            "seconds_per_turn": options.seconds_per_turn,
            "precisions": options.precisions,
            "peers": sorted(options.peers),
        },
        "peers": {},
        "dropped": [],
        "workloads": {},
    }
    file = report.figures_file(result, options.output)
    if not options.resume or not file.exists():
        return result
    earlier: dict[str, Any] = json.loads(file.read_text())
    for name in ("commit", "machine", "settings"):
        if earlier[name] != result[name]:
            raise SystemExit(
                f"--resume: {file} has another {name}: {earlier[name]}, and now {result[name]}. "
                "Leave --resume out, or pass another --output."
            )
    return earlier


def main() -> None:
    options = parse()
    # SIGTERM ends the runners too, like an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    result = open_result(options)
    workloads = [WORKLOADS[n] for n in options.workloads if n not in result["workloads"]]
    chosen = {
        work.name: contenders(work.kind, options.peers, options.precisions) for work in workloads
    }
    LOGS.mkdir(parents=True, exist_ok=True)
    missing = build_environments(one for row in chosen.values() for one in row)
    progress = Progress(workloads, options)
    for name, why in missing.items():
        reason = [PEERS[name].title, "every row", why]
        result["dropped"] += [reason] if reason not in result["dropped"] else []
    for workload in workloads:
        taking_part = [one for one in chosen[workload.name] if one.peer.name not in missing]
        outcome = measure(workload, taking_part, options, progress)
        result["workloads"][workload.name] = outcome.as_json()
        for (precision, name), why in outcome.dropped.items():
            result["dropped"].append([f"{PEERS[name].title}, {precision}", workload.title, why])
        for (_, name), ready in outcome.ready.items():
            entry = {"versions": ready.versions, "note": ready.note}
            known = result["peers"].setdefault(name, entry)
            if ready.note not in known["note"]:
                known["note"] += f"; {ready.note}"
        # After every workload, so that an interrupted run leaves its results.
        page = report.write(result, options.output)
        progress.log(f"wrote {page}")
    print()
    print(report.page(result))


if __name__ == "__main__":
    main()
