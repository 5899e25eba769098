"""The files of a report. Each is written atomically, so a report can be read at any time.

`run.json` has the environment, the runs and all totals. `programs/` has a file for each compiled
program. `parts/` has the events in order; a part is final when the next one exists.
`docs/reports.md` describes their content.
"""

import contextlib
import datetime
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convoy.atomic_file import atomic_write
from convoy.error_messages import system_reason
from convoy.types import Json

if TYPE_CHECKING:
    from convoy.report.notebook import Comparison

FORMAT, VERSION = "convoy-report", 1
RUN, PROGRAMS, PARTS = "run.json", "programs", "parts"
CLASSIFICATION = "classification.json"
"""Confusion matrix and worst mistakes of a classifier, if a run has them."""
LISTS = ("spans", "calls", "metrics", "epochs", "pipelines", "host_memory")
"""The lists of a part."""

_RUN_KEYS = ("state", "error", "began", "seconds", "devices", "framework", "peak", "runs", "totals")
_CLASSIFICATION_KEYS = ("class_names", "matrix", "mistakes")
_PROGRAM_KEYS = ("name", "seconds", "memory", "memory_course", "flops", "operations")


class ReportError(ValueError):
    """A report does not exist, or cannot be read or written."""


class ReportWriter:
    """Writes a report to a folder, and replaces an earlier one.

    Args:
        folder: the folder; it is created if needed.

    Raises:
        ReportError: if the folder cannot be created or written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (PROGRAMS, PARTS):
                (self.folder / name).mkdir(exist_ok=True)
            for old in _report_files(self.folder):
                old.unlink()
        except OSError as error:
            raise ReportError(
                f"A report cannot be written to {self.folder}: {system_reason(error)}. Pass "
                "another folder."
            ) from None

    def write_run(self, content: Json) -> None:
        write(self.folder / RUN, {"format": FORMAT, "version": VERSION} | content)

    def write_program(self, number: int, content: Json) -> None:
        write(self.folder / PROGRAMS / f"{number:04}.json", content)

    def write_part(self, number: int, content: Json) -> None:
        write(self.folder / PARTS / f"{number:06}.json", content)


@dataclass(frozen=True)
class Report:
    """A report that was read.

    Attributes:
        folder: the folder.
        run: the content of `run.json`.
        programs: the contents of the files in `programs/`, in order.
        parts: the rows of all files in `parts/`, for each of `LISTS`.
        classification: the content of `classification.json`, if there is one.
    """

    folder: Path
    run: Json
    programs: list[Json]
    parts: dict[str, list[Any]]
    classification: Json | None = None

    def to_json(self) -> Json:
        return {
            "name": str(self.folder),
            "run": self.run,
            "programs": self.programs,
            "classification": self.classification,
            **self.parts,
        }

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # The output of a notebook cell. `notebook` imports this module.
        from convoy.report.notebook import display_data

        return display_data(self)

    def compare(self, other: "Report") -> "Comparison":
        """Return the comparison with another report, which notebooks show."""
        from convoy.report.notebook import Comparison

        return Comparison(self, other)


def read(folder: str | os.PathLike[str]) -> Report:
    """Read a report; it may still be growing.

    Raises:
        ReportError: if there is no report, or one of its files is damaged.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ReportError(f"{path}: there is no such folder. Pass the folder of a report.")
    if not (path / RUN).is_file():
        inside = sorted(p.parent.name for p in path.glob(f"*/{RUN}"))
        hint = f" There are reports in it: {', '.join(inside)}." if inside else ""
        raise ReportError(
            f"{path} has no report: there is no {RUN} in it.{hint} Record one with "
            "strategy.record(folder) or `convoy train --report`."
        )
    run = _load(path / RUN)
    if run.get("format") != FORMAT:
        raise ReportError(
            f"{path / RUN} is not a report: its format is {run.get('format')!r}, not {FORMAT!r}. "
            "Pass the folder of a report."
        )
    if run.get("version") != VERSION:
        raise ReportError(
            f"{path / RUN} has version {run.get('version')!r} of the format; this Convoy reads "
            f"version {VERSION}. Use the Convoy that wrote it."
        )
    _check(path / RUN, run, _RUN_KEYS)
    programs = []
    for file in sorted((path / PROGRAMS).glob("*.json")):
        programs.append(_load(file))
        _check(file, programs[-1], _PROGRAM_KEYS)
    parts: dict[str, list[Any]] = {name: [] for name in LISTS}
    for file in sorted((path / PARTS).glob("*.json")):
        content = _load(file)
        for name in LISTS:
            parts[name] += content.get(name, [])
    classification = None
    if (file := path / CLASSIFICATION).is_file():
        classification = _load(file)
        _check(file, classification, _CLASSIFICATION_KEYS)
    return Report(path, run, programs, parts, classification)


def write(path: Path, content: Json) -> None:
    """Write a JSON file atomically."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(_dumps(content))


def _dumps(content: Json) -> str:
    try:
        return json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(finite(content), separators=(",", ":"), allow_nan=False)


def finite(value: Any) -> Any:
    """Replace numbers that JSON does not have, such as NaN, by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _load(path: Path) -> Json:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} is damaged: {error}. Record the run again.") from None
    if not isinstance(content, dict):
        raise ReportError(f"{path} is damaged: it is not an object. Record the run again.")
    return content


def _check(path: Path, content: Json, keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in content]
    if missing:
        raise ReportError(f"{path} is damaged: it has no {missing[0]!r}. Record the run again.")


def new_folder(parent: str | os.PathLike[str]) -> Path:
    """Create a folder with the time and the process in its name, as Graphcore's reports have."""
    while True:
        now = datetime.datetime.now().isoformat(timespec="milliseconds").replace(":", "-")
        folder = Path(parent) / f"tf_report__{now}__{os.getpid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder


def _report_files(folder: Path) -> Iterator[Path]:
    yield from (file for name in (RUN, CLASSIFICATION) if (file := folder / name).is_file())
    for name in (PROGRAMS, PARTS):
        yield from (folder / name).glob("*.json")
