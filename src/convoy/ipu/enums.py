"""The words that options are set to, with the numbers that they are saved as."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Self


class SelectionOrder(IntEnum):
    """In which order the devices of a logical device follow each other."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class DeviceConnectionType(IntEnum):
    """When devices are attached."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class MergeRemoteBuffersBehaviour(IntEnum):
    """Whether remote buffers of one shape are joined."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(IntEnum):
    """In which order the compiler puts operations."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(IntEnum):
    """Whether 16-bit results are rounded up or down by chance."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @classmethod
    def from_bool(cls, value: bool) -> Self:
        """Return `ON` or `OFF`."""
        if not isinstance(value, bool):
            raise TypeError(f"from_bool({value!r}): pass True or False.")
        return cls(int(value))


class ExecutionProfileType(IntEnum):
    """How finely a run is profiled."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class _Named(Enum):
    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the member that a member or a name, in any case, stands for.

        Raises:
            ValueError: if there is none.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        names = ", ".join(cls.__members__)
        raise ValueError(f"{value!r} is not a {cls.__name__}. Pass one of {names}.")


class GradientAccumulationReductionMethod(_Named):
    """What becomes of the gradients of a weight update's micro-batches."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2


class ReplicatedMetricReductionMethod(_Named):
    """What becomes of the metrics of replicas."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4


class PipelineSchedule(IntEnum):
    """In which order the stages of a pipeline take their turns."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(Enum):
    """How activations that were not kept are computed again."""

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


class ReduceOp(_Named):
    """How the values of several replicas or processes become one."""

    SUM = 0
    MEAN = 1

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the member that a member, a name, or TensorFlow's own member stands for."""
        return super().parse(getattr(value, "name", value))
