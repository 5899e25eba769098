"""The records of a run in `metrics.csv`: a row each, written at once."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from convoy.atomic_file import written_whole
from convoy.train.metrics_row import Record

_NAMES = [field.name for field in fields(Record)]


class MetricsFile:
    """A file of records.

    A run that goes on finds rows of the earlier one. Those that it will not make again are taken
    over by `keep`; until then, or until the first new row, the file stays as it is.

    Args:
        path: of the file.
        goes_on: whether to look for earlier rows.
    """

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        self.path = path
        self.records: list[Record] = []
        self.earlier = read(path) if goes_on and path.is_file() else []
        self._is_current = not self.earlier
        if self._is_current:
            self._rewrite()

    def keep(self, rows: int) -> None:
        """Take over the first rows of the earlier run, and drop the others."""
        self.records = self.earlier[:rows]
        self._rewrite()

    def add(self, record: Record) -> None:
        """Write a row, so that a run that is cut short has left it."""
        self.records.append(record)
        if not self._is_current:
            self._rewrite()
            return
        with self.path.open("a", newline="") as file:
            _write(file, [record])
            file.flush()
            os.fsync(file.fileno())

    def _rewrite(self) -> None:
        with written_whole(self.path) as unfinished, unfinished.open("w", newline="") as file:
            csv.writer(file).writerow(_NAMES)
            _write(file, self.records)
            file.flush()
            os.fsync(file.fileno())
        self._is_current = True


def read(path: Path) -> list[Record]:
    """Return the records in a file, up to the first row that is not whole."""
    text = path.read_text()
    # A row that was being written when the run was killed has no end.
    whole = text[: text.rfind("\n") + 1]
    records = []
    for row in csv.DictReader(io.StringIO(whole, newline="")):
        try:
            records.append(_record(row))
        except (KeyError, TypeError, ValueError):
            break
    return records


def _record(row: dict[str, str]) -> Record:
    def number(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    return Record(
        row["phase"],
        int(row["update"]),
        *(float(row[name]) for name in ("epoch", "loss", "accuracy", "throughput")),
        *(number(name) for name in ("learning_rate", "compilation", "loss_scale")),
    )


def _write(file: io.TextIOBase, records: Iterable[Record]) -> None:
    csv.writer(file).writerows(asdict(record).values() for record in records)
