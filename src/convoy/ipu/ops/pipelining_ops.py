"""The words of pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convoy.ipu import missing
from convoy.ipu.enums import PipelineSchedule, RecomputationMode

__all__ = ["PipelineSchedule", "PipelineStageOptions", "RecomputationMode"]


@dataclass(frozen=True)
class PipelineStageOptions:
    """Options of Graphcore's libraries for one stage; they have no effect on other devices."""

    convolution_options: dict[str, str] | None = None
    matmul_options: dict[str, str] | None = None
    slice_options: dict[str, str] | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not isinstance(value, dict):
                raise TypeError(f"{name}={value!r} is not a dict of options.")


def __getattr__(name: str) -> Any:
    raise missing.error("ipu.ops.pipelining_ops", name)
