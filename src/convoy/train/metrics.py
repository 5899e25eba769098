"""Metrics of a run: a row per log event, the file `metrics.csv`, and their output."""

import csv
import io
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean

from convoy.atomic_file import atomic_write
from convoy.engine.numerics.numerics import LOSS_SCALE_LOG
from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True)
class MetricsRow:
    """The metrics of a run after some weight updates.

    Attributes:
        phase: `"training"` or `"validation"`.
        update: number of weight updates so far.
        epoch: number of epochs so far.
        loss: mean over all samples since the last row.
        accuracy: mean over the same samples, from 0 to 1.
        throughput: samples per second.
        learning_rate: learning rate of the last update.
        compilation: seconds of compilation in the first device call, in the row that includes it.
            They do not count in its throughput.
        loss_scale: loss scale, if the loss is scaled.
    """

    phase: str
    update: int
    epoch: float
    loss: float
    accuracy: float
    throughput: float
    learning_rate: float | None = None
    compilation: float | None = None
    loss_scale: float | None = None

    @property
    def sentence(self) -> str:
        """The values as text for a terminal."""
        return (
            f"{self.phase:<10}  epoch {self.epoch:<6g}  loss {self.loss:.4f}  accuracy "
            f"{self.accuracy:7.2%}  {self.throughput:,.0f} images/s"
        )

    @property
    def fields(self) -> list[str]:
        """The values in the format of log lines."""
        parts = [f"throughput: {self.throughput:.1f} samples/sec"]
        if self.compilation is not None:
            parts.append(f"Compilation Time: {self.compilation:.1f} s")
        parts.append(f"epoch: {self.epoch:g}")
        if (memory := memory_in_use()) is not None:
            parts.append(f"%CPU memory: {memory:.1f}")
        if self.learning_rate is not None:
            parts.append(f"lr: {self.learning_rate:.6g}")
        if self.loss_scale is not None:
            parts.append(f"{LOSS_SCALE_LOG}: {self.loss_scale:g}")
        parts.append(f"loss: {self.loss:.4f}")
        parts.append(f"{self.phase}_accuracy: {100 * self.accuracy:.2f} %")
        return parts

    @property
    def scalars(self) -> dict[str, float]:
        """The values for experiment trackers and event files, by `phase/name`."""
        values = asdict(self).items()
        return {f"{self.phase}/{name}": v for name, v in values if isinstance(v, float)}


def average(rows: Sequence[MetricsRow]) -> MetricsRow:
    """Combine rows with the same number of samples; other values are those of the last row.

    Unknown throughputs (NaN) are left out.
    """
    times = [1 / row.throughput for row in rows if not math.isnan(row.throughput)]
    compilation = next((row.compilation for row in rows if row.compilation is not None), None)
    return replace(
        rows[-1],
        loss=fmean(row.loss for row in rows),
        accuracy=fmean(row.accuracy for row in rows),
        throughput=len(times) / sum(times),
        compilation=compilation,
    )


def memory_in_use() -> float | None:
    """Return the percentage of the host's memory in use, where the system provides it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = {name: int(size.split()[0]) for name, _, size in (li.partition(":") for li in lines)}
    return 100 * (1 - sizes["MemAvailable"] / sizes["MemTotal"])


_ROW = TypeAdapter(MetricsRow)
_NAMES = [field.name for field in fields(MetricsRow)]


class MetricsFile:
    """A CSV file of metrics rows.

    A resumed run reads the rows of the earlier run. `keep` keeps those that will not be produced
    again. The file does not change before `keep` is called or the first row is added.

    Args:
        path: path of the file.
        resumes: whether to read the rows of an earlier run.
    """

    def __init__(self, path: Path, *, resumes: bool = False) -> None:
        self.path = path
        self.rows: list[MetricsRow] = []
        self.earlier = read_metrics(path) if resumes and path.is_file() else []
        if not self.earlier:
            self._write()

    def keep(self, count: int) -> None:
        """Keep the first rows of the earlier run, and drop the others."""
        self.rows = self.earlier[:count]
        self._write()

    def add(self, row: MetricsRow) -> None:
        """Write a row to disk at once, so that it survives if the process is killed."""
        self.rows.append(row)
        self._write()

    def _write(self) -> None:
        with atomic_write(self.path) as unfinished, unfinished.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_NAMES)
            writer.writerows(asdict(row).values() for row in self.rows)
            file.flush()
            os.fsync(file.fileno())


def read_metrics(path: Path) -> list[MetricsRow]:
    """Return the rows of a file, up to the first one that is not complete."""
    text = path.read_text()
    # In files of earlier versions, a row that was being written when the process was killed has no
    # line end.
    complete = text[: text.rfind("\n") + 1]
    rows = []
    for values in csv.DictReader(io.StringIO(complete, newline="")):
        try:
            rows.append(_ROW.validate_python({k: v or None for k, v in values.items()}))
        except ValidationError:
            break
    return rows
