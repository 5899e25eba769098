"""Enumerations of option values, with the numbers under which they are saved."""

from enum import Enum, IntEnum
from typing import Self


class SelectionOrder(IntEnum):
    """Order of the devices of a logical device."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class DeviceConnectionType(IntEnum):
    """Time at which devices are attached."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class MergeRemoteBuffersBehaviour(IntEnum):
    """Merging of remote buffers of the same shape."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(IntEnum):
    """Algorithm by which the compiler orders operations."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(IntEnum):
    """Stochastic rounding of 16-bit results."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @classmethod
    def from_bool(cls, value: bool) -> Self:
        """Return `ON` or `OFF`."""
        if not isinstance(value, bool):
            raise TypeError(f"from_bool() received {value!r}. Pass True or False.")
        return cls(int(value))


class ExecutionProfileType(IntEnum):
    """Level of detail of a profile."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class _Named(Enum):
    @classmethod
    def parse(cls, value: object) -> Self:
        """Return a member from itself or from its name, in upper or lower case.

        Raises:
            ValueError: if there is no such member.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        names = ", ".join(cls.__members__)
        raise ValueError(f"{value!r} is not a {cls.__name__}. Pass one of {names}.")


class GradientAccumulationReductionMethod(_Named):
    """Reduction of the gradients of the micro-batches of a weight update."""

    SUM = 0
    MEAN = 1
    RUNNING_MEAN = 2


class ReplicatedMetricReductionMethod(_Named):
    """Reduction of the metrics of replicas."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4


class PipelineSchedule(IntEnum):
    """Pipeline schedule: GPipe (Grouped), 1F1B (Interleaved), or one micro-batch at a time."""

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(Enum):
    """Way of activation checkpointing in pipeline stages."""

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2


class ReduceOp(_Named):
    """Reduction of the values of several replicas or processes."""

    SUM = 0
    MEAN = 1

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return a member from itself, from its name, or from TensorFlow's member."""
        return super().parse(getattr(value, "name", value))
