"""Training of the same networks with Convoy and its peers, in turns, and a page of the results.

    make bench-peers
    make bench-zoo
    .venv/bin/python -m benchmarks.peers.run --workloads mnist resnet50 --peers torch --rounds 3
    .venv/bin/python -m benchmarks.peers.run --precisions bfloat16 --workloads resnet50

Every peer in every precision is a process, in an environment that the first run builds (about
5 GB). For each workload all of them start, compile and warm up. Then they take turns, round by
round, so that drift of the machine affects all, and only one of them runs at any time. Expected:
about 90 minutes on two cores, and a page, its figures and a chart in `benchmarks/results`.

`--suite zoo` measures networks that nothing was tuned for, with Keras peers, and profiles Convoy on
those where it is less than 1.2 times as fast as the best.

The page is written after every workload. `--resume` continues a run that was interrupted: it skips
the workloads that the figures of the same commit and settings contain. `--again` measures the
chosen workloads again and keeps the others.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers import environments, machine, report, zoo_report
from benchmarks.peers.peers import PEERS, PRECISIONS, Contender
from benchmarks.peers.suites import SUITES, Suite
from benchmarks.peers.turns import Outcome, Rounds
from benchmarks.peers.workloads import Workload

RESULTS = environments.ROOT / "benchmarks" / "results"
QUICK_RESULTS = environments.ROOT / "runs"
LOGS = environments.FOLDER / "logs"
PAGES: dict[str, ModuleType] = {"peers": report, "zoo": zoo_report}
"""The module that writes the page of each suite."""
# The time to start, compile and warm up the peers of a workload, for the estimate.
PREPARE_SECONDS = 60.0
PROFILE_TIMEOUT = 900.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], add_help=False)
    parser.add_argument("--suite", choices=SUITES, default="peers", help="default: peers")
    suite = SUITES[parser.parse_known_args(arguments)[0].suite]
    names, peers = list(suite.workloads), suite.peers()
    parser.add_argument("-h", "--help", action="help", help="show this list")
    parser.add_argument("--workloads", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--peers", nargs="+", choices=peers, default=peers)
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=list(suite.precisions)
    )
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    text = "continue a run, but measure the chosen workloads again"
    parser.add_argument("--again", action="store_true", help=text)
    text = f"turns of each peer (default: {suite.rounds})"
    parser.add_argument("--rounds", type=int, default=suite.rounds, help=text)
    text = f"default: {suite.seconds}"
    parser.add_argument("--seconds-per-turn", type=float, default=suite.seconds, help=text)
    parser.add_argument("--no-profiles", action="store_true", help="profile no workload")
    text = "default: benchmarks/results"
    parser.add_argument("--output", type=Path, help=text)
    quick = QUICK_RESULTS / f"{suite.name}-quick"
    text = f"one turn of a few steps each, into {quick.relative_to(environments.ROOT)}"
    parser.add_argument("--quick", action="store_true", help=text)
    options = parser.parse_args(arguments)
    options.suite = suite
    options.resume = options.resume or options.again
    if options.quick:
        options.rounds, options.seconds_per_turn = 1, 0.0
    options.output = options.output or (quick if options.quick else RESULTS)
    return options


class Progress:
    """Prints progress with the elapsed and the remaining time."""

    def __init__(self, workloads: list[Workload], options: argparse.Namespace) -> None:
        self.start = time.perf_counter()
        self.ahead = len(workloads)
        turns = len(options.peers) * len(options.precisions) * options.rounds
        self.expected = turns * options.seconds_per_turn + PREPARE_SECONDS
        self.done = 0

    def log(self, text: str) -> None:
        minutes, seconds = divmod(int(time.perf_counter() - self.start), 60)
        print(f"[{minutes:2}:{seconds:02}] {text}", flush=True)

    def workload_done(self, workload: Workload) -> None:
        """Count a workload; the remaining time follows from past ones and from the settings."""
        self.done += 1
        elapsed = time.perf_counter() - self.start
        pace = (elapsed + self.ahead * self.expected) / (self.done + self.ahead)
        self.ahead -= 1
        left = max(1, round(pace * self.ahead / 60)) if self.ahead else 0
        self.log(f"{workload.name} measured; about {left} min left")


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
    rounds = Rounds(workload, options.suite, options.seconds_per_turn, progress.log)
    while chosen:
        progress.log(f"{workload.name}: {len(chosen)} processes compile and warm up")
        try:
            rounds.start(chosen, LOGS)
            rounds.calibrate()
            for number in range(options.rounds):
                rounds.run_round()
                progress.log(f"{workload.name}, round {number + 1} of {options.rounds}")
        finally:
            chosen = rounds.end()
    progress.workload_done(workload)
    return rounds.outcome


def profile(workload: Workload) -> dict[str, Any]:
    """Profile a workload with Convoy in a process of its own, and return its report."""
    command = [sys.executable, "-m", "benchmarks.peers.profile", "--json", workload.name]
    try:
        done = subprocess.run(
            command,
            cwd=environments.ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=PROFILE_TIMEOUT,
        )
    except subprocess.CalledProcessError as error:
        return {"failed": (error.stderr.strip().splitlines() or ["no message"])[-1]}
    except subprocess.TimeoutExpired:
        return {"failed": f"it took longer than {PROFILE_TIMEOUT:.0f} s"}
    return json.loads(done.stdout.splitlines()[-1])


def needs_profile(suite: Suite, found: dict[str, report.Rows]) -> bool:
    """Return whether Convoy is too little ahead of the best peer in float32."""
    rows = found.get("float32", {})
    ratios = [zoo_report.best_speedup(rows, quantity) for quantity in ("seconds", "cpu_seconds")]
    return any(ratio is not None and ratio.middle < suite.profiled_below for ratio in ratios)


def open_result(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a new run, or of the interrupted run that is continued.

    Raises:
        SystemExit: if a run of the same day had another commit or other settings.
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
        "starts": {},
        "profiles": {},
    }
    today = report.figures_file(result, options.output, options.suite.name)
    files = sorted(options.output.glob(f"*-{options.suite.name}.json"), reverse=True)
    for file in files if options.resume else ():
        earlier: dict[str, Any] = json.loads(file.read_text())
        other = [
            name for name in ("commit", "machine", "settings") if earlier[name] != result[name]
        ]
        if not other:
            return earlier
        if file == today:
            raise SystemExit(
                f"--resume: {file} has another {other[0]}: {earlier[other[0]]}, and now "
                f"{result[other[0]]}. Leave --resume out, or pass another --output."
            )
    return result


def main() -> None:
    # SIGTERM ends the runners too, like an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    run(parse())


def run(options: argparse.Namespace) -> None:
    """Measure the chosen workloads, and write the page after each of them."""
    suite: Suite = options.suite
    result = open_result(options)
    if options.again:
        forget(result, options.workloads)
    chosen_workloads = [suite.workloads[name] for name in options.workloads]
    workloads = [work for work in chosen_workloads if work.name not in result["workloads"]]
    chosen = {
        work.name: suite.contenders(work.kind, options.peers, options.precisions)
        for work in workloads
    }
    LOGS.mkdir(parents=True, exist_ok=True)
    missing = build_environments(one for row in chosen.values() for one in row)
    progress = Progress(workloads, options)
    for name, why in missing.items():
        reason = [PEERS[name].title, "every row", why]
        result["dropped"] += [reason] if reason not in result["dropped"] else []
    for workload in chosen_workloads:
        if workload in workloads:
            taking_part = [one for one in chosen[workload.name] if one.peer.name not in missing]
            record(result, workload, measure(workload, taking_part, options, progress))
            # After every workload, so that an interrupted run leaves its results.
            progress.log(f"wrote {PAGES[suite.name].write(result, options.output)}")
        if (
            not options.no_profiles
            and workload.name not in result["profiles"]
            and needs_profile(suite, result["workloads"][workload.name])
        ):
            progress.log(f"{workload.name}: Convoy is profiled")
            result["profiles"][workload.name] = profile(workload)
            PAGES[suite.name].write(result, options.output)
    print()
    print(PAGES[suite.name].page(result))


def forget(result: dict[str, Any], names: Collection[str]) -> None:
    """Remove workloads from the figures of a run."""
    for part in ("workloads", "starts", "profiles"):
        result[part] = {name: found for name, found in result[part].items() if name not in names}
    result["dropped"] = [row for row in result["dropped"] if row[1] not in names]


def record(result: dict[str, Any], workload: Workload, outcome: Outcome) -> None:
    """Add the outcome of a workload to the figures of a run."""
    result["workloads"][workload.name] = outcome.as_json()
    result["starts"][workload.name] = outcome.starts_as_json()
    for (precision, name), why in outcome.dropped.items():
        result["dropped"].append([f"{PEERS[name].title}, {precision}", workload.name, why])
    for (_, name), ready in outcome.ready.items():
        entry = {"versions": ready.versions, "note": ready.note}
        known = result["peers"].setdefault(name, entry)
        if ready.note not in known["note"]:
            known["note"] += f"; {ready.note}"


if __name__ == "__main__":
    main()
