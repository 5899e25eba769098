"""Training of the same networks with Convoy and its peers, in turns, and a page of the results.

    make bench-peers
    .venv/bin/python -m benchmarks.peers.run --workloads mnist resnet50 --peers torch --rounds 3

Every peer is a process with its own environment, which the first run builds (about 4 GB). For each
workload all peers start, compile and warm up. Then they take turns, round by round, so that drift
of the machine affects all, and only one of them runs at any time. Expected: about 40 minutes on two
cores, and a page, its figures and a chart in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import environments, machine, report
from benchmarks.peers.peers import HEADLINE, PEERS, Peer, taking_part
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
        peers = len(options.peers)
        self.expected = peers * options.seconds_per_turn + PREPARE_SECONDS / options.rounds
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


def build_environments(peers: list[Peer]) -> dict[str, str]:
    """Build the environments. Return the peers that must be dropped, with the reasons."""
    problems = {name: environments.build(name) for name in {peer.environment for peer in peers}}
    if problems.get("onnxruntime") == "":
        problems["onnxruntime"] = export_onnx()
    return {peer.name: problems[peer.environment] for peer in peers if problems[peer.environment]}


def export_onnx() -> str:
    """Write the models for ONNX Runtime with PyTorch. Return the problem, or nothing."""
    problem = environments.build("torch")
    if problem:
        return f"PyTorch writes its models, and {problem}"
    command = [str(environments.python("torch")), "-m", "benchmarks.peers.export_onnx"]
    done = subprocess.run(command, cwd=environments.ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return f"its models could not be written: {done.stderr.strip().splitlines()[-1]}"


def measure(
    workload: Workload, peers: list[Peer], options: argparse.Namespace, progress: Progress
) -> Outcome:
    rounds = Rounds(workload, options.seconds_per_turn, progress.log)
    progress.log(f"{workload.title}: {len(peers)} peers compile and warm up")
    try:
        rounds.start(peers, LOGS)
        rounds.calibrate()
        for number in range(options.rounds):
            rounds.run_round(number)
            progress.round_done(f"{workload.name}, round {number + 1} of {options.rounds}")
    finally:
        rounds.end()
    return rounds.outcome


def main() -> None:
    options = parse()
    # SIGTERM ends the runners too, like an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    workloads = [WORKLOADS[name] for name in options.workloads]
    chosen = [peer for peer in PEERS.values() if peer.name in {HEADLINE, *options.peers}]
    LOGS.mkdir(parents=True, exist_ok=True)
    missing = build_environments(chosen)
    progress = Progress(workloads, options)
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "commit": machine.commit(),
        "machine": machine.describe(),
        "settings": {"rounds": options.rounds, "seconds_per_turn": options.seconds_per_turn},
        "peers": {},
        "dropped": [[PEERS[name].title, "every row", why] for name, why in missing.items()],
        "workloads": {},
    }
    for workload in workloads:
        peers = [p for p in taking_part(workload.kind) if p in chosen and p.name not in missing]
        outcome = measure(workload, peers, options, progress)
        result["workloads"][workload.name] = outcome.as_json()
        for name, why in outcome.dropped.items():
            result["dropped"].append([PEERS[name].title, workload.title, why])
        for name, ready in outcome.ready.items():
            result["peers"].setdefault(name, {"versions": ready.versions, "note": ready.note})
        # After every workload, so that an interrupted run leaves its results.
        page = report.write(result, options.output)
    progress.log(f"wrote {page}")
    print()
    print(report.page(result))


if __name__ == "__main__":
    main()
