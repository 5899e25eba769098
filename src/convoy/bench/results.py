"""What benchmarks gave: as a record, and as JSON, CSV and JUnit files."""

from __future__ import annotations

import csv
import json
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

COLUMNS = ("throughput", "latency", "total_compiling_time")
NAME = "benchmark_results"


@dataclass(frozen=True)
class Outcome:
    """How one run of one variant went.

    Attributes:
        benchmark: the entry's name.
        variant: with the parameters in it.
        spec: the file.
        parameters: of the variant.
        environment: the variables of the entry.
        command: as it was run.
        values: of each metric, by the word for its reduction.
        samples: of each metric, the numbers behind its value.
        exit_status: of the command; 1 if it was 0 but a metric is missing.
        reason: why it failed; empty if it did not.
        start: seconds since the epoch.
        seconds: how long it took.
        logs: the files with the standard output and the standard error.
    """

    benchmark: str
    variant: str
    spec: Path
    parameters: Mapping[str, str]
    environment: Mapping[str, str]
    command: str
    values: Mapping[str, Mapping[str, float | None]]
    samples: Mapping[str, Sequence[float]]
    exit_status: int
    reason: str
    start: float
    seconds: float
    logs: tuple[Path, Path]

    @property
    def passed(self) -> bool:
        return not self.reason

    def value(self, metric: str) -> float | None:
        return next(iter(self.values.get(metric, {}).values()), None)

    def as_dict(self) -> dict[str, Any]:
        end = self.start + self.seconds
        return {
            "benchmark_path": str(self.spec),
            "benchmark_name": self.benchmark,
            "variant_name": self.variant,
            "params": dict(self.parameters),
            "env": dict(self.environment),
            "command": self.command,
            "results": {name: dict(by) for name, by in self.values.items()},
            "samples": {name: list(numbers) for name, numbers in self.samples.items()},
            "passed": self.passed,
            "reason": self.reason,
            "start_time": datetime.fromtimestamp(self.start, UTC).isoformat(),
            "end_time": datetime.fromtimestamp(end, UTC).isoformat(),
            "test_duration": self.seconds,
            "exitcode": self.exit_status,
            "log_paths": {"out": str(self.logs[0]), "err": str(self.logs[1])},
        }


def join(runs: Sequence[Outcome]) -> Outcome:
    """Make one outcome of several runs of a variant: the median of each value, and all values."""
    if len(runs) == 1:
        return runs[0]
    first = next((run for run in runs if not run.passed), runs[0])
    values: dict[str, dict[str, float | None]] = {}
    samples: dict[str, list[float]] = {}
    for name, by in first.values.items():
        found = [value for run in runs if (value := run.value(name)) is not None]
        samples[name] = found
        middle = statistics.median(found) if len(found) == len(runs) else None
        values[name] = dict.fromkeys(by, middle)
    seconds = sum(run.seconds for run in runs)
    changed = {"values": values, "samples": samples, "seconds": seconds, "start": runs[0].start}
    return Outcome(**(vars(first) | changed))


def write_results(
    outcomes: Sequence[Outcome], folder: Path, *, more_columns: Sequence[str] = (), details: bool
) -> None:
    """Write `benchmark_results.json`, `.csv` and `.xml`.

    Args:
        outcomes: one for each variant.
        folder: where to.
        more_columns: metrics that get a column in the CSV, beside `COLUMNS`.
        details: whether it has columns with duration, loss, result, command and so on.
    """
    (folder / f"{NAME}.json").write_text(json.dumps(as_json(outcomes), indent=2) + "\n")
    _write_csv(outcomes, folder / f"{NAME}.csv", more_columns, details)
    tree = ElementTree.ElementTree(_junit(outcomes))
    ElementTree.indent(tree)
    tree.write(folder / f"{NAME}.xml", encoding="utf-8", xml_declaration=True)


def as_json(outcomes: Iterable[Outcome]) -> dict[str, list[dict[str, Any]]]:
    about = {"git_commit_hash": git_commit(), "versions": versions()}
    grouped: dict[str, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.benchmark, []).append(outcome.as_dict() | about)
    return grouped


def versions() -> dict[str, str]:
    names = ("keras-convoy", "jax", "keras", "numpy")
    found = {name: metadata.version(name) for name in names}
    return {"python": platform.python_version(), "machine": platform.platform()} | found


def git_commit(folder: Path | None = None) -> str:
    """Return the commit that a folder is at; `Not a git repo` where there is none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "Not a git repo"
    return done.stdout.strip()


def _write_csv(
    outcomes: Sequence[Outcome], file: Path, more_columns: Sequence[str], details: bool
) -> None:
    metrics = list(dict.fromkeys([*COLUMNS, *more_columns]))
    extra = ["test_duration", "loss", "result", "cmd", "env", "git_commit_hash"] if details else []
    commit = git_commit() if details else ""
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, quoting=csv.QUOTE_ALL)
        writer.writerow(["benchmark name", "Variant name", *metrics, *extra])
        for outcome in outcomes:
            row = [outcome.benchmark, outcome.variant, *map(outcome.value, metrics)]
            if details:
                result = "PASSED" if outcome.passed else "FAILED"
                environment = " ".join(f"{k}={v}" for k, v in outcome.environment.items())
                row += [outcome.seconds, outcome.value("loss"), result]
                row += [outcome.command, environment, commit]
            writer.writerow(["" if cell is None else cell for cell in row])


def _junit(outcomes: Sequence[Outcome]) -> ElementTree.Element:
    root = ElementTree.Element("testsuites")
    for name in dict.fromkeys(outcome.benchmark for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.benchmark == name]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(own)),
            failures=str(sum(not outcome.passed for outcome in own)),
            time=f"{sum(outcome.seconds for outcome in own):.3f}",
        )
        for outcome in own:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=name,
                name=outcome.variant,
                time=f"{outcome.seconds:.3f}",
            )
            properties = ElementTree.SubElement(case, "properties")
            for metric in outcome.values:
                value = outcome.value(metric)
                if value is not None:
                    ElementTree.SubElement(properties, "property", name=metric, value=repr(value))
            if not outcome.passed:
                failure = ElementTree.SubElement(case, "failure", message=outcome.reason)
                failure.text = f"exit status {outcome.exit_status}: {outcome.command}"
    return root
