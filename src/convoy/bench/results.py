"""Results of benchmark variants, and their JSON, CSV, JUnit and PNG files."""

import csv
import json
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from convoy.versions import installed_versions

COLUMNS = ("throughput", "latency", "total_compiling_time")
NAME = "benchmark_results"


@dataclass(frozen=True)
class Result:
    """Result of one variant. Fields are named as in the JSON file.

    Attributes:
        benchmark_path: path of the spec.
        benchmark_name: name of the benchmark.
        variant_name: name of the variant.
        params: parameters of the variant.
        env: environment variables of the benchmark.
        command: executed command.
        results: values by metric and reduction.
        samples: numbers from which the values were computed.
        reason: cause of a failure; empty if there was none.
        passed: whether the command succeeded and all metrics were found.
        exitcode: exit status of the command; 1 if it was 0 but a metric is missing.
        start_time: time of the start, in ISO format.
        end_time: time of the end, in ISO format.
        test_duration: duration in seconds.
        log_paths: files of the standard output (`out`) and the standard error (`err`).
    """

    benchmark_path: str
    benchmark_name: str
    variant_name: str
    params: Mapping[str, str]
    env: Mapping[str, str]
    command: str
    results: Mapping[str, Mapping[str, float | None]]
    samples: Mapping[str, Sequence[float]]
    reason: str
    passed: bool
    exitcode: int
    start_time: str
    end_time: str
    test_duration: float
    log_paths: Mapping[str, str]

    def value(self, metric: str) -> float | None:
        return self.values.get(metric)

    @property
    def values(self) -> dict[str, float]:
        """Values by metric, without missing ones."""
        return present_values(self.results)


def present_values(results: Mapping[str, Mapping[str, float | None]]) -> dict[str, float]:
    """Return the value of each metric, without missing ones."""
    found = {metric: next(iter(by.values()), None) for metric, by in results.items()}
    return {metric: value for metric, value in found.items() if value is not None}


def join(runs: Sequence[Result]) -> Result:
    """Return one result for repeated runs of a variant: the median of each value, and all values.

    If a run has failed, the other fields are those of the first failure.
    """
    if len(runs) == 1:
        return runs[0]
    first = next((run for run in runs if not run.passed), runs[0])
    results: dict[str, dict[str, float | None]] = {}
    samples: dict[str, list[float]] = {}
    for name, by in first.results.items():
        found = [value for run in runs if (value := run.value(name)) is not None]
        samples[name] = found
        median = statistics.median(found) if len(found) == len(runs) else None
        results[name] = dict.fromkeys(by, median)
    return replace(
        first,
        results=results,
        samples=samples,
        start_time=runs[0].start_time,
        end_time=runs[-1].end_time,
        test_duration=sum(run.test_duration for run in runs),
    )


def write_results(
    results: Sequence[Result], folder: Path, *, more_columns: Sequence[str] = (), details: bool
) -> None:
    """Write `benchmark_results.json`, `.csv` and `.xml`.

    Args:
        results: results of all variants.
        folder: folder of the files.
        more_columns: metrics with a column in the CSV file, in addition to `COLUMNS`.
        details: whether the CSV file has columns for duration, loss, result, command and so on.
    """
    commit = git_commit()
    system = {"python": platform.python_version(), "machine": platform.platform()}
    common = {"git_commit_hash": commit, "versions": system | installed_versions()}
    by_benchmark: dict[str, list[dict[str, object]]] = {}
    for result in results:
        by_benchmark.setdefault(result.benchmark_name, []).append(asdict(result) | common)
    (folder / f"{NAME}.json").write_text(json.dumps(by_benchmark, indent=2) + "\n")
    metrics = list(dict.fromkeys([*COLUMNS, *more_columns]))
    with (folder / f"{NAME}.csv").open("w", newline="") as opened:
        writer = csv.writer(opened, quoting=csv.QUOTE_ALL)
        columns = dict.fromkeys(_details(results[0], commit)) if details and results else ()
        writer.writerow(["benchmark name", "Variant name", *metrics, *columns])
        for result in results:
            row = [result.benchmark_name, result.variant_name, *map(result.value, metrics)]
            writer.writerow([*row, *(_details(result, commit).values() if details else ())])
    tree = ElementTree.ElementTree(_junit(results))
    ElementTree.indent(tree)
    tree.write(folder / f"{NAME}.xml", encoding="utf-8", xml_declaration=True)


def git_commit() -> str:
    """Return the commit of the current folder; `Not a git repo` if it has none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "Not a git repo"
    return done.stdout.strip()


def _details(result: Result, commit: str) -> dict[str, object]:
    return {
        "test_duration": result.test_duration,
        "loss": result.value("loss"),
        "result": "PASSED" if result.passed else "FAILED",
        "cmd": result.command,
        "env": " ".join(f"{key}={value}" for key, value in result.env.items()),
        "git_commit_hash": commit,
    }


def _junit(results: Sequence[Result]) -> ElementTree.Element:
    root = ElementTree.Element("testsuites")
    for name in dict.fromkeys(result.benchmark_name for result in results):
        own = [result for result in results if result.benchmark_name == name]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(own)),
            failures=str(sum(not result.passed for result in own)),
            time=f"{sum(result.test_duration for result in own):.3f}",
        )
        for result in own:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=name,
                name=result.variant_name,
                time=f"{result.test_duration:.3f}",
            )
            properties = ElementTree.SubElement(case, "properties")
            for metric, value in result.values.items():
                ElementTree.SubElement(properties, "property", name=metric, value=repr(value))
            if not result.passed:
                failure = ElementTree.SubElement(case, "failure", message=result.reason)
                failure.text = f"exit status {result.exitcode}: {result.command}"
    return root
