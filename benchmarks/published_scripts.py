"""Losses and metrics of the Keras scripts of a folder: stock Keras on JAX and Convoy.

    .venv/bin/python benchmarks/published_scripts.py FOLDER

Each script runs twice, unmodified and in a folder of its own: with stock Keras, and by
`convoy launch --replicas N`. Both runs have the same random seed. The table contains the largest
relative difference between the logs of their epochs and evaluations. If it is above the tolerance,
stock Keras runs once more: a script whose own results change from run to run has no result to
compare with, and the table says so.

The exit status is 1 if a script that stock Keras runs fails or differs with Convoy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDER = Path(__file__).with_name("script_recorder.py")
# Values below this are compared with it instead of with each other, because their digits are
# mostly rounding.
SMALL = 1e-3
ERROR_LENGTH = 160

Log = tuple[str, dict[str, Any]]


@dataclass
class Outcome:
    """Logs of one run of a script, and its error, empty if there was none."""

    logs: list[Log] = field(default_factory=list)
    error: str = ""


@dataclass
class Row:
    """One line of the table."""

    script: str
    stock: str
    convoy: str = "-"
    difference: str = "-"
    passed: bool = True


def run_script(command: list[str], script: Path, timeout: float, output: Path) -> Outcome:
    """Run a script under the recorder.

    Args:
        command: program that runs the recorder.
        script: path of the script.
        timeout: seconds after which the run is killed.
        output: file for what the script prints.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs, working_folder = Path(folder) / "logs.json", Path(folder) / "run"
        working_folder.mkdir()
        with output.open("w") as stream:
            process = subprocess.Popen(
                [*command, str(RECORDER), str(logs), str(script.resolve())],
                cwd=working_folder,
                env=os.environ | {"KERAS_BACKEND": "jax", "MPLBACKEND": "agg"},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                return Outcome(error=f"no end after {timeout:g} s")
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if logs.exists():
            outcome = Outcome(**json.loads(logs.read_text()))
        else:
            lines = output.read_text(errors="replace").split("\n")
            outcome = Outcome(error=next((x for x in reversed(lines) if x.strip()), ""))
        if status and not outcome.error:
            outcome.error = f"exit status {status}"
        return outcome


def largest_difference(expected: list[Log], found: list[Log]) -> tuple[float, str]:
    """Return the largest relative difference of two lists of logs, and the value's name.

    The difference is infinite if the epochs, evaluations or names differ.
    """
    if [kind for kind, _ in expected] != [kind for kind, _ in found]:
        return math.inf, f"{len(found)} logs instead of {len(expected)}"
    largest = (0.0, "")
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        if ours.keys() != theirs.keys():
            return math.inf, " ".join(sorted(ours.keys() ^ theirs.keys()))
        for name, value in theirs.items():
            for a, b in zip(flat(value), flat(ours[name]), strict=True):
                largest = max(largest, (relative_difference(a, b), name))
    return largest


def flat(value: Any) -> list[float]:
    """Return the numbers of a value: one, or those of an array."""
    return [x for part in value for x in flat(part)] if isinstance(value, list) else [value]


def relative_difference(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    difference = abs(a - b) / max(abs(a), abs(b), SMALL)
    return math.inf if math.isnan(difference) else difference


def compare(
    script: Path, replicas: int, timeout: float, tolerance: float, output_folder: Path
) -> Row:
    """Run a script with stock Keras and with Convoy, and compare the logs."""
    output_folder.mkdir(parents=True, exist_ok=True)
    stock_output, convoy_output = (
        output_folder / f"{script.stem}-{name}.txt" for name in ("stock", "convoy")
    )
    stock_command = [sys.executable]
    # The console script `convoy` calls the same module.
    convoy_command = [sys.executable, "-m", "convoy", "launch", "--replicas", str(replicas)]
    stock = run_script(stock_command, script, timeout, stock_output)
    if stock.error:
        return Row(script.name, shortened(stock.error))
    convoy = run_script(convoy_command, script, timeout, convoy_output)
    row = Row(script.name, "ok")
    if convoy.error:
        row.convoy, row.passed = shortened(convoy.error), False
        return row
    row.convoy = "ok"
    if not stock.logs and not convoy.logs:
        row.difference = "no fit or evaluate"
        return row
    difference, name = largest_difference(stock.logs, convoy.logs)
    row.difference = f"{difference:.1e} ({name})" if difference else "0"
    if difference > tolerance:
        again = run_script(stock_command, script, timeout, stock_output)
        varies, name = largest_difference(stock.logs, again.logs)
        row.passed = varies > tolerance
        if row.passed:
            row.difference += f"; stock Keras differs from itself by {varies:.1e} ({name})"
    return row


def shortened(error: str) -> str:
    """Return an error as one cell of the table."""
    line = " ".join(error.split()).replace("|", "\\|")
    return line if len(line) <= ERROR_LENGTH else line[:ERROR_LENGTH] + "..."


def scripts_of(folder: Path) -> list[Path]:
    """Return the scripts of a folder, in alphabetical order.

    Raises:
        ValueError: if there are none.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder.")
    scripts = sorted(folder.glob("*.py"))
    if not scripts:
        raise ValueError(f"{folder} contains no .py files.")
    return scripts


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with Keras scripts")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="replicas of Convoy")
    parser.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="seconds of one run (default: 600)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, help="largest difference (default: 1e-3)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="keep what the scripts print in this folder"
    )
    options = parser.parse_args(words)
    try:
        scripts = scripts_of(options.folder)
        for name in ("replicas", "timeout", "tolerance"):
            if getattr(options, name) <= 0:
                raise ValueError(f"--{name} must be positive, not {getattr(options, name):g}.")
    except ValueError as error:
        print(f"published_scripts: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        output = options.output or Path(temporary)
        failed = print_table(scripts, options.replicas, options.timeout, options.tolerance, output)
    print(f"\n{len(scripts)} scripts, {failed} failed.")
    return 1 if failed else 0


def print_table(scripts: list[Path], *settings: Any) -> int:
    """Compare scripts, print a row for each, and return the number of those that failed."""
    print("| script | stock | Convoy | largest difference |\n|---|---|---|---|", flush=True)
    failed = 0
    for script in scripts:
        row = compare(script, *settings)
        failed += not row.passed
        mark = "" if row.passed else " **failed**"
        print(f"| {row.script} | {row.stock} | {row.convoy} | {row.difference}{mark} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
