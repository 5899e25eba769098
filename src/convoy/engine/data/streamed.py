"""Data that is read during training and transferred to the devices in blocks.

Reading, transfers and computation overlap. While the device computes with one block, `prefetch`
reads the batches of the next block and starts their transfer.

    host     | read 1 | read 2      | read 3      | read 4      |
    copy              | 1 |         | 2 |         | 3 |
    device                | compute 1   | compute 2   | compute 3   |

A block has room for a fixed number of steps, so that a shorter last block runs in the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from convoy import keras_bridge, user_warnings
from convoy.engine import checks, random_state
from convoy.engine.data.chunks import Chunk, DataPosition, StepDivision
from convoy.engine.data.placement import Placement, tree_bytes, tree_shapes
from convoy.keras_bridge import Batches
from convoy.types import Batch, PyTree, Shapes
from convoy.units import format_count

# From the input's batches to a chunk on the devices, for two replicas, each with its own batches,
# and two steps per weight update:
#
#     batches          b0 b1 | b2 b3 | b4 b5 | b6        `_read` groups them by weight update
#     steps             s0       s1      s2              `_complete` joins one batch per replica
#     weight updates   |----- u0 -----|  |-- left out    s2 and b6 do not fill an update
#     block            [ s0, s1 ]                        `_assemble` stacks steps of one shape
#     micro-batches    [ m0, m1 ], sharded               `block_chunk` divides and moves them
#
# Only steps of one shape share a block, so a step of another shape is kept for the next block. A
# position counts the batches up to the last step that was returned, not those that were read ahead.

# The block in use, the block that waits for it, the block being assembled, and its copy in
# transfer.
BLOCKS_IN_FLIGHT = 4


class Step(NamedTuple):
    """The data of one step, as host arrays.

    Attributes:
        batch: the samples.
        samples: the number of samples.
        sharded: whether they are divided over replicas.
        batches_read: batches of the epoch that were read up to the end of this step.
    """

    batch: Batch
    samples: int
    sharded: bool
    batches_read: int

    def is_like(self, other: Step) -> bool:
        return self.sharded == other.sharded and _shapes(self.batch) == _shapes(other.batch)


class Streamed:
    """A feed from an iterator over batches.

    Args:
        batches: Keras's iterator over the input.
        placement: the devices.
        division: the division of the data into steps.
        budget: bytes that all blocks in flight may take on a device.
        steps_per_block: maximum number of steps in a block.
        batches_per_step: batches of the input that make one step.
        restarts: whether every epoch begins at the start of the input, even if the last one
            stopped before its end.
        inspect: function that is called with the first batch, before anything is compiled for it.
    """

    def __init__(
        self,
        batches: Batches,
        placement: Placement,
        division: StepDivision,
        budget: int,
        steps_per_block: int,
        *,
        batches_per_step: int = 1,
        restarts: bool = False,
        inspect: Callable[[Batch], None] | None = None,
    ) -> None:
        self.batches = batches
        self.placement = placement
        self.division = division
        self.budget = budget
        self.steps_per_block = steps_per_block
        self.restarts = restarts
        self.batches_per_step = batches_per_step
        if placement.spans_processes and batches_per_step > 1:
            batches.read_selected(self._is_own)
        self.steps = self._count_steps()
        self._left_out = 0
        self._warned_undivided = False
        # For arrays, `open_input` has warned already.
        self._warned_left_out = batches.sliced_from_arrays
        self._inspect = inspect
        self._searches = False
        self._steps: Iterator[Step] = iter(())
        self._held: Step | None = None
        self._ready: tuple[Chunk, int] | None = None
        self.resume_obstacle = batches.resume_obstacle
        self._before = self._done = 0
        self._state: PyTree = None
        self._drawn_from = random_state.capture()

    def _count_steps(self) -> int | None:
        if self.division.keeps_incomplete:
            known = self.batches.num_batches
            return known if known is None else -(-known // self.batches_per_step)
        complete, per_update = self.batches.full_batches, self.division.steps_per_update
        if complete is None:
            return None
        return complete // (self.batches_per_step * per_update) * per_update

    def _is_own(self, index: int) -> bool:
        """Return whether a batch belongs to a replica of this process.

        The last batches belong to every replica: if one of them is incomplete, none of them is
        sharded.
        """
        update = self.batches_per_step * self.division.steps_per_update
        last = (self.batches.num_batches - 1) // update * update
        return index >= last or self.placement.is_own(index % self.batches_per_step)

    def begin_epoch(self) -> None:
        if self.restarts:
            self.batches.reset()
        self._before, self._done = self.batches.consumed_before, 0
        if self._before == 0:
            self._drawn_from = random_state.capture()
            self._state = self.batches.state
        self._begin(0)

    def _begin(self, done: int) -> None:
        self._steps = self._read(done)
        self._held = self._ready = None
        self._left_out = 0

    def make_repeatable(self) -> None:
        self.batches.drop_read_ahead()

    def position(self, *, epoch_over: bool) -> DataPosition:
        before, done = (
            (self.batches.consumed_before, 0) if epoch_over else (self._before, self._done)
        )
        state = self.batches.state if epoch_over and before == 0 else self._state
        start, now = self._units_until(before), self._units_until(before + done)
        return DataPosition(self._drawn_from, start, now - start, state)

    def seek(self, position: DataPosition) -> int:
        self.batches.set_state(position.state)
        if position.before + position.done == 0:
            self.begin_epoch()
            return 0
        before = self._batches_until(position.before)
        now = self._batches_until(position.before + position.done)
        self._before, self._done = before, now - before
        self._state, self._drawn_from = position.state, position.order
        current = random_state.capture()
        random_state.restore(position.order)
        self.batches.seek(before, self._done)
        self._begin(self._done)
        self._held = next(self._steps, None)
        # With shuffle="batch", Keras draws the order of each batch as it reads it, so the random
        # state is now the one after the batches that were read.
        if not (self.batches.sliced_from_arrays and self.batches.shuffle == "batch"):
            random_state.restore(current)
        return -(-self._done // self.batches_per_step)

    def _units_until(self, batches: int) -> int:
        samples = self.batches.samples
        if samples is None:
            return batches
        return min(batches * self.batches.batch_size, samples)

    def _batches_until(self, units: int) -> int:
        samples, per_step = self.batches.samples, self.batches_per_step
        if samples is None:
            return self.division.steps_until(units, per_step, end=0) * per_step
        return self.division.steps_until(units, self.batches.batch_size, samples)

    def example(self) -> Shapes | None:
        self._held = self._held or next(self._steps, None)
        return self._held and tree_shapes(self._held.batch)

    def next(self, max_steps: int) -> Chunk | None:
        ready, self._ready = self._ready or self._assemble(max_steps), None
        if ready is None:
            return None
        chunk, self._done = ready
        return chunk

    def prefetch(self, max_steps: int) -> None:
        self._ready = self._ready or self._assemble(max_steps)

    def first_not_finite(self) -> str | None:
        if self.batches.arrays is not None:
            x, _, _ = keras_bridge.unpack(self.batches.arrays)
            return checks.first_not_finite(x)
        self._searches = True
        return "Batches from now on are searched for NaN and infinity."

    def _search(self, number: int, batch: Batch) -> None:
        """Warn once about a batch with NaN or infinity."""
        x, _, _ = keras_bridge.unpack(batch)
        found = checks.first_not_finite(x)
        if found is not None:
            self._searches = False
            user_warnings.warn(f"{found[:-1]} of batch {number - 1}. Correct or remove it.")

    def _read(self, done: int) -> Iterator[Step]:
        """Group the input's batches into steps, after those that are done."""
        update = self.batches_per_step * self.division.steps_per_update
        group: list[Batch] = []
        read = 0
        for read, batch in enumerate(self.batches, start=1):
            if read <= done:
                continue
            if self._inspect is not None:
                self._inspect(batch)
                self._inspect = None
            if self._searches:
                self._search(read, batch)
            if group and _shapes(batch) != _shapes(group[0]):
                yield from self._incomplete(group, read - 1)
                group = []
            group.append(batch)
            if len(group) == update:
                yield from self._complete(group, read)
                group = []
        yield from self._incomplete(group, read)
        self._warn_left_out()

    def _complete(self, group: list[Batch], read: int) -> Iterator[Step]:
        """Yield the steps of a weight update."""
        samples = _samples(group[0]) * self.batches_per_step
        # The last batch of arrays may have fewer samples, and still divide over the replicas.
        is_smaller = self.batches.sliced_from_arrays and samples != self.batches.batch_size
        if is_smaller or samples % self.division.parts:
            if not is_smaller:
                self._warn_undivided(samples)
            yield from self._incomplete(group, read)
            return
        for start in range(0, len(group), self.batches_per_step):
            batches = group[start : start + self.batches_per_step]
            batch = jax.tree.map(_concatenate, *batches) if len(batches) > 1 else batches[0]
            yield Step(batch, samples, True, read - len(group) + start + self.batches_per_step)

    def _incomplete(self, group: list[Batch], read: int) -> Iterator[Step]:
        """Yield each batch as a separate step that is not sharded, or drop all of them."""
        for batches_read, batch in enumerate(group, start=read - len(group) + 1):
            if self.division.keeps_incomplete:
                yield Step(batch, _samples(batch), False, batches_read)
            else:
                self._left_out += _samples(batch)

    def _warn_undivided(self, samples: int) -> None:
        replicas, micro_batches = self.division.replicas, self.division.micro_batches_per_step
        if self._warned_undivided or replicas == 1:
            return
        self._warned_undivided = True
        user_warnings.warn(
            f"A batch of {samples} samples does not divide over {replicas} replicas x "
            f"{micro_batches} micro-batches, so every replica computes all of it. Make the input "
            f"yield batches of a multiple of {replicas * micro_batches}."
        )

    def _warn_left_out(self) -> None:
        if not self._left_out or self._warned_left_out:
            return
        self._warned_left_out = True
        replicas = self.division.replicas
        gradient_accumulation = self.division.gradient_accumulation
        user_warnings.warn(
            f"{self._left_out} samples of the epoch do not fill a weight update of "
            f"{format_count(replicas, 'replica')} x {gradient_accumulation} accumulated and are "
            f"left out. Make the input yield a multiple of {replicas * gradient_accumulation} "
            "batches, all of one size."
        )

    def _assemble(self, max_steps: int) -> tuple[Chunk, int] | None:
        """Put the next steps of one shape into a block; also return the batches read so far."""
        first = self._held or next(self._steps, None)
        self._held = None
        if first is None:
            return None
        per_update = self.division.steps_per_update
        fitting = self.budget // (BLOCKS_IN_FLIGHT * max(1, tree_bytes(first.batch)))
        fitting = max(1, fitting // per_update) * per_update
        capacity = min(self.steps_per_block, fitting, self.steps or self.steps_per_block)
        steps = [first]
        while len(steps) < min(max_steps, capacity) and (step := next(self._steps, None)):
            if not step.is_like(first):
                self._held = step
                break
            steps.append(step)
        block = jax.tree.map(lambda *rows: _stack(rows, capacity), *(s.batch for s in steps))
        chunk = block_chunk(block, len(steps), self.placement, self.division, first.sharded)
        return chunk, steps[-1].batches_read


def block_chunk(
    block: PyTree, steps: int, placement: Placement, division: StepDivision, sharded: bool
) -> Chunk:
    """Move a block to the devices, divided into micro-batches.

    Args:
        block: arrays whose first axis is the step.
        steps: steps in the block that are filled.
        placement: the devices.
        division: the division of the data into steps.
        sharded: whether micro-batches are divided over the replicas.
    """
    samples = jax.tree.leaves(block)[0].shape[1]
    if not sharded:
        return Chunk("block", placement.replicate(block), samples, steps, steps, sharded=False)
    per_step = division.micro_batches_per_step
    micro_batch_samples = samples // per_step
    block = jax.tree.map(lambda leaf: leaf.reshape(-1, micro_batch_samples, *leaf.shape[2:]), block)
    return Chunk("block", placement.shard(block), micro_batch_samples, steps, steps * per_step)


def _stack(rows: tuple[np.ndarray, ...], capacity: int) -> np.ndarray:
    rows = tuple(np.asarray(row) for row in rows)
    if capacity == 1:
        return rows[0][None]
    block = np.empty((capacity, *rows[0].shape), rows[0].dtype)
    for target, row in zip(block, rows, strict=False):
        target[...] = row
    return block


def _concatenate(*batches: np.ndarray) -> np.ndarray:
    return np.concatenate([np.asarray(batch) for batch in batches])


def _samples(batch: Batch) -> int:
    return jax.tree.leaves(batch)[0].shape[0]


def _shapes(batch: Batch) -> list[tuple]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch)]
