"""Losses and metrics of Keras scripts: stock Keras on JAX and Convoy.

    .venv/bin/python benchmarks/published_scripts.py FOLDER

Each script runs twice, unmodified and in a folder of its own: with stock Keras, and by
`convoy launch --replicas N`. Both runs have the same random seed. The table contains the last loss
of both, the largest relative difference between the logs of their epochs and evaluations, whether
they ran on Convoy's engine or on stock Keras's loop, and the warnings that only Convoy gives.

If the difference is above the tolerance, more runs find its cause, and the table contains them.
First both run again in float64. If the difference is then below 1e-9, both compute the same, and
the script amplifies rounding errors. Otherwise stock Keras runs from initial weights that differ by
one rounding unit each. A script whose results then change as much has none to compare with that
accurately: it depends on the clock or on random numbers without a seed, or it amplifies rounding
errors.

`--samples N` replaces datasets and trained weights by random ones (`small_data.py`), so that no
script needs the network. `--files DIR` copies the files of `DIR/<script's name without .py>` to the
folder in which the script runs, where it also finds its downloads.

The exit status is 1 if a script that stock Keras runs fails or differs with Convoy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
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
# A run has rounding errors at every step, and the perturbed run of stock Keras only at the first.
ROUNDING = 10
FLOAT64_TOLERANCE = 1e-9

Log = tuple[str, dict[str, Any]]


@dataclass
class Outcome:
    """Logs and warnings of one run of a script, and its error, empty if there was none."""

    logs: list[Log] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: str | None = ""

    def last_loss(self) -> str:
        """Return the last loss of the run, or else the last value of another name."""
        values = [(name, value) for _, log in self.logs for name, value in log.items()]
        losses = [value for name, value in values if "loss" in name] or [x for _, x in values]
        return f"{flat(losses[-1])[-1]:.7g}" if losses else "ok"


@dataclass
class Row:
    """One line of the table."""

    script: str
    stock: str
    convoy: str = "-"
    difference: str = "-"
    path: str = "-"
    notices: str = ""
    passed: bool = True


@dataclass
class Settings:
    """How scripts are run and compared: the options of the command line."""

    replicas: int
    timeout: float
    tolerance: float
    output: Path
    samples: int
    epochs: int | None
    steps: int | None
    files: Path | None


def run_script(
    command: list[str],
    script: Path,
    settings: Settings,
    kind: str,
    *options: str,
) -> Outcome:
    """Run a script under the recorder.

    Args:
        command: program that runs the recorder.
        script: path of the script.
        settings: settings of the run.
        kind: name of the run, for its files in the output folder.
        *options: options of the recorder.
    """
    logs, output = (
        (settings.output / f"{script.stem}-{kind}{end}").resolve() for end in (".json", ".txt")
    )
    logs.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder, output.open("w") as stream:
        if settings.files and (settings.files / script.stem).is_dir():
            shutil.copytree(settings.files / script.stem, folder, dirs_exist_ok=True)
        process = subprocess.Popen(
            [
                *(*command, str(RECORDER), "--samples", str(settings.samples), *options),
                *(str(logs), str(script.resolve())),
            ],
            cwd=folder,
            env=os.environ | environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(settings.timeout)
        except subprocess.TimeoutExpired:
            return Outcome(error=f"no end after {settings.timeout:g} s")
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


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables of a run."""
    limits = {"KERAS_MAX_EPOCHS": settings.epochs, "KERAS_MAX_STEPS_PER_EPOCH": settings.steps}
    return {
        "KERAS_BACKEND": "jax",
        "MPLBACKEND": "agg",
        "PYTHONHASHSEED": "0",  # The order of sets is then the same in both runs.
        **{name: str(limit) for name, limit in limits.items() if limit is not None},
    }


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


def compare(script: Path, settings: Settings) -> Row:
    """Run a script with stock Keras and with Convoy, and compare the logs."""
    stock_command = [sys.executable]
    # The console script `convoy` calls the same module.
    launch = [sys.executable, "-m", "convoy", "launch", "--replicas", str(settings.replicas)]
    stock = run_script(stock_command, script, settings, "stock")
    if stock.error:
        return Row(script.name, shortened(stock.error))
    convoy = run_script(launch, script, settings, "convoy")
    row = Row(script.name, stock.last_loss(), convoy.last_loss())
    row.path = " and ".join(sorted(set(convoy.paths))) or "-"
    known = set(stock.warnings)
    row.notices = "; ".join(shortened(x) for x in convoy.warnings if x not in known)
    if convoy.error:
        row.convoy, row.passed = shortened(convoy.error), False
        return row
    if not stock.logs and not convoy.logs:
        row.difference = "no fit or evaluate"
        return row
    difference, row.difference = difference_or_error(stock, convoy)
    if difference > settings.tolerance:
        exact = run_script(stock_command, script, settings, "stock-float64", "--float64")
        again = run_script(launch, script, settings, "convoy-float64", "--float64")
        remains, note = difference_or_error(exact, again)
        row.difference += f"; in float64: {note}"
        row.passed = remains <= FLOAT64_TOLERANCE
    if not row.passed:
        again = run_script(stock_command, script, settings, "perturbed", "--perturb")
        varies, note = difference_or_error(stock, again)
        row.difference += f"; stock Keras, perturbed: {note}"
        row.passed = math.isfinite(varies) and difference <= ROUNDING * varies
    return row


def difference_or_error(stock: Outcome, again: Outcome) -> tuple[float, str]:
    """Return the largest difference of a run from stock Keras, and as text, or the run's error."""
    if stock.error or again.error:
        return math.inf, shortened(stock.error or again.error or "")
    difference, name = largest_difference(stock.logs, again.logs)
    return difference, f"{difference:.1e} ({name})" if difference else "0"


def shortened(error: str) -> str:
    """Return an error as one cell of the table."""
    line = " ".join(error.split()).replace("|", "\\|")
    return line if len(line) <= ERROR_LENGTH else line[:ERROR_LENGTH] + "..."


def scripts_of(paths: list[Path]) -> list[Path]:
    """Return the scripts of folders, in alphabetical order, and those that are named.

    Raises:
        ValueError: if there are none.
    """
    scripts = []
    for path in paths:
        found = sorted(path.glob("*.py")) if path.is_dir() else [path]
        if not path.exists():
            raise ValueError(f"{path} does not exist.")
        if not found:
            raise ValueError(f"{path} contains no .py files.")
        scripts += found
    return scripts


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    try:
        scripts = scripts_of(options.path)
        for name in ("replicas", "timeout", "tolerance", "epochs", "steps"):
            if getattr(options, name) is not None and getattr(options, name) <= 0:
                raise ValueError(f"--{name} must be positive, not {getattr(options, name):g}.")
        if options.samples < 0:
            raise ValueError(f"--samples must not be negative, but is {options.samples}.")
    except ValueError as error:
        print(f"published_scripts: {error}", file=sys.stderr)
        return 2
    del options.path
    with tempfile.TemporaryDirectory() as temporary:
        options.output = options.output or Path(temporary)
        options.output.mkdir(parents=True, exist_ok=True)
        failed = print_table(scripts, Settings(**vars(options)))
    print(f"\n{len(scripts)} scripts, {failed} failed.")
    return 1 if failed else 0


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, nargs="+", help="folder with Keras scripts, or a script")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="replicas of Convoy")
    parser.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="seconds of one run (default: 600)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, help="largest difference (default: 1e-3)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="keep the logs and what the scripts print in this folder",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=0,
        metavar="N",
        help="random datasets of N samples instead of downloads (default: 0, downloads)",
    )
    parser.add_argument("--epochs", type=int, metavar="N", help="largest number of epochs")
    parser.add_argument("--steps", type=int, metavar="N", help="largest number of steps per epoch")
    parser.add_argument(
        "--files", type=Path, metavar="FOLDER", help="folder with a folder of files for each script"
    )
    return parser.parse_args(words)


def print_table(scripts: list[Path], settings: Settings) -> int:
    """Compare scripts, print a row for each, and return the number of those that failed."""
    print("| script | stock | Convoy | largest difference | path | notices |")
    print("|---|---|---|---|---|---|", flush=True)
    failed = 0
    for script in scripts:
        row = compare(script, settings)
        failed += not row.passed
        mark = "" if row.passed else " **failed**"
        cells = (row.script, row.stock, row.convoy, row.difference + mark, row.path, row.notices)
        print(f"| {' | '.join(cells)} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
