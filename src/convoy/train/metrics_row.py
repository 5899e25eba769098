"""What is known at a host event."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean


@dataclass(frozen=True)
class Record:
    """The state of a run after some weight updates.

    Attributes:
        phase: `"training"` or `"validation"`.
        update: weight updates so far.
        epoch: the same in epochs.
        loss: mean over all samples since the last record.
        accuracy: the same, from 0 to 1.
        throughput: samples per second.
        learning_rate: of the last update.
        compilation: seconds until the first device call had ended, in the record that has it.
        loss_scale: if the loss is scaled.
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
        """The values as a person reads them."""
        return (
            f"{self.phase:<10}  epoch {self.epoch:<6g}  loss {self.loss:.4f}  accuracy "
            f"{self.accuracy:7.2%}  {self.throughput:,.0f} images/s"
        )

    @property
    def fields(self) -> list[str]:
        """The values in the form that log lines have."""
        parts = [f"throughput: {self.throughput:.1f} samples/sec"]
        if self.compilation is not None:
            parts.append(f"Compilation Time: {self.compilation:.1f} s")
        parts.append(f"epoch: {self.epoch:g}")
        if (memory := memory_in_use()) is not None:
            parts.append(f"%CPU memory: {memory:.1f}")
        if self.learning_rate is not None:
            parts.append(f"lr: {self.learning_rate:.6g}")
        if self.loss_scale is not None:
            parts.append(f"loss_scaling_factor: {self.loss_scale:g}")
        parts.append(f"loss: {self.loss:.4f}")
        parts.append(f"{self.phase}_accuracy: {100 * self.accuracy:.2f} %")
        return parts


def average(records: Sequence[Record]) -> Record:
    """Join records of equally many samples; what is not a mean is that of the last.

    Throughputs that are not known (NaN) are left out.
    """
    times = [1 / record.throughput for record in records if not math.isnan(record.throughput)]
    compilation = next((r.compilation for r in records if r.compilation is not None), None)
    return replace(
        records[-1],
        loss=fmean(record.loss for record in records),
        accuracy=fmean(record.accuracy for record in records),
        throughput=len(times) / sum(times),
        compilation=compilation,
    )


def memory_in_use() -> float | None:
    """Return the percentage of the host's memory that is in use, where that can be told."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    sizes = {name: int(rest.split()[0]) for name, _, rest in (li.partition(":") for li in lines)}
    return 100 * (1 - sizes["MemAvailable"] / sizes["MemTotal"])
