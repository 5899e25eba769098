"""Chunks of data on the devices, and the interface of the feeds that make them.

Data that fits into the budget is transferred once and indexed on the device (`resident.py`). All
other data is streamed in blocks; the next block is transferred while the device computes
(`streamed.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

from convoy.engine.random_state import RandomState
from convoy.types import Json, PyTree, Shapes

Layout = Literal["ordered", "contiguous", "block"]


@dataclass(frozen=True)
class Chunk:
    """The data of some steps on the devices.

    Attributes:
        layout: layout of the micro-batches: `"ordered"` by an array of indices into complete
            arrays; `"contiguous"` for consecutive samples of complete arrays; `"block"` for arrays
            whose first axis is the micro-batch.
        source: `(arrays, order, offset)`, or the block.
        micro_batch_samples: number of samples in a micro-batch, over all replicas.
        steps: steps, as the user counts them.
        micro_batches: micro-batches of all steps.
        sharded: whether micro-batches are divided over the replicas and accumulated. Otherwise, as
            for an incomplete batch, every replica runs the complete batch, and it is a separate
            weight update.
    """

    layout: Layout
    source: PyTree
    micro_batch_samples: int
    steps: int
    micro_batches: int
    sharded: bool = True


@dataclass(frozen=True)
class StepDivision:
    """The division of data into steps.

    If `batch_size` counts the micro-batch of one replica, a step is one micro-batch of every
    replica, and `gradient_accumulation` steps make a weight update. If it counts the global batch,
    a step is a weight update, with `gradient_accumulation` micro-batches.

    Attributes:
        replicas: replicas that divide each micro-batch.
        steps_per_update: steps of a weight update; an epoch ends with a complete one.
        micro_batches_per_step: micro-batches that a step is divided into.
        keeps_incomplete: whether samples that do not fill a weight update are run, on every
            replica; otherwise they are dropped.
    """

    replicas: int
    steps_per_update: int = 1
    micro_batches_per_step: int = 1
    keeps_incomplete: bool = True

    @cached_property
    def parts(self) -> int:
        """Parts that the samples of a step are divided into, over replicas and micro-batches."""
        return self.replicas * self.micro_batches_per_step

    @property
    def gradient_accumulation(self) -> int:
        """Micro-batches of a weight update on each replica."""
        return self.steps_per_update * self.micro_batches_per_step

    def steps_until(self, units: int, units_per_step: int, end: int) -> int:
        """Return the number of steps that consume a given amount of data.

        Args:
            units: number of samples or batches consumed.
            units_per_step: samples or batches of one step.
            end: samples or batches of an epoch, whose last step may be incomplete; 0 if unknown.

        Raises:
            ValueError: if no weight update ends there.
        """
        if 0 < end < units:
            raise ValueError(
                f"The checkpoint was saved after {units} samples or batches of the epoch, but the "
                f"data now ends after {end}. Resume with the data that the run started with."
            )
        steps, left = divmod(units, units_per_step)
        if left and units == end:
            return steps + 1
        if left or steps % self.steps_per_update:
            raise ValueError(
                f"The checkpoint was saved after {units} samples or batches of the epoch, which is "
                f"not a multiple of the {units_per_step * self.steps_per_update} that a weight "
                "update now takes. Resume with a batch size, devices and accumulation whose "
                f"product divides {units}."
            )
        return steps


class DataPosition(NamedTuple):
    """A position in the data of a run.

    It is counted in samples for arrays, and in batches of the input otherwise. These numbers stay
    valid with another number of replicas. The order of the data is determined by the random state
    from which it was drawn, so seeking does not read earlier data.

    Attributes:
        order: the random state before the order was drawn.
        before: samples or batches of that order that earlier epochs have taken.
        done: samples or batches that this epoch has taken.
        state: the state that the input itself reported when the epoch began, if it has one.
    """

    order: RandomState
    before: int
    done: int
    state: PyTree = None

    def to_json(self) -> Json:
        return self._asdict() | {"order": self.order.to_json()}

    @classmethod
    def from_json(cls, position: Json) -> DataPosition:
        return cls(**position | {"order": RandomState.from_json(position["order"])})


class Feed(Protocol):
    """The data of a run, provided in chunks, epoch by epoch."""

    steps: int | None
    """Steps in an epoch, if that is known."""

    resume_obstacle: str | None
    """The reason why `seek` would not be exact, if there is one."""

    def begin_epoch(self) -> None: ...

    def make_repeatable(self) -> None:
        """Make the order of the data depend only on the random state, from the first epoch on."""
        ...

    def position(self, *, epoch_over: bool) -> DataPosition:
        """Return the position after all chunks that were returned."""
        ...

    def seek(self, position: DataPosition) -> int:
        """Begin an epoch at a position, and return how many of its steps are done.

        Raises:
            ValueError: if no weight update of this feed ends there.
        """
        ...

    def example(self) -> Shapes | None:
        """Return the shapes and types of the first batch of the epoch, if there is one."""
        ...

    def next(self, max_steps: int) -> Chunk | None:
        """Return the next chunk, of at most `max_steps` steps; `None` at the end of the epoch."""
        ...

    def prefetch(self, max_steps: int) -> None:
        """Start moving the chunk that the next call of `next` will return."""
        ...

    def first_not_finite(self) -> str | None:
        """Return a description of the first NaN or infinity in the inputs, or `None`."""
        ...
