"""Batches that are read while training runs, and moved to the devices a block at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from convoy.engine import random_state
from convoy.engine.data.chunks import Chunk, Cut, Place, Placement, shapes, size, steps_until
from convoy.keras_bridge import Batches

# One computing, one waiting for it, one being put together, and its copy on the way.
BLOCKS_IN_FLIGHT = 4


class Step(NamedTuple):
    """The data of one step, as host arrays.

    Attributes:
        batch: the samples.
        samples: how many.
        sharded: whether they are divided over replicas.
        position: batches of the epoch that were read up to its end.
    """

    batch: Any
    samples: int
    sharded: bool
    position: int

    def alike(self, other: Step) -> bool:
        return self.sharded == other.sharded and _shapes(self.batch) == _shapes(other.batch)


class Streamed:
    """Feeds from anything that can be iterated over.

    Args:
        batches: Keras's walk over the input.
        placement: where data goes.
        cut: how it is cut into steps.
        budget: bytes that all blocks in flight may take on a device.
        limit: the most steps that one device call will run.
        restarts: whether every epoch begins anew, where the last one may have stopped before the
            end.
        inspect: called with the first batch, before anything is compiled for it.
    """

    def __init__(
        self,
        batches: Batches,
        placement: Placement,
        cut: Cut,
        budget: int,
        limit: int,
        *,
        batches_per_step: int = 1,
        restarts: bool = False,
        inspect: Callable[[Any], None] | None = None,
    ) -> None:
        self.batches = batches
        self.placement = placement
        self.cut = cut
        self.budget = budget
        self.limit = limit
        self.restarts = restarts
        self.per_step = batches_per_step
        if placement.spans_processes and batches_per_step > 1:
            batches.read_only(self._is_own)
        self.steps = self._count_steps()
        self._left_out = 0
        self._said_undivided = False
        # Of arrays it was said when they were opened.
        self._warned = batches.batch_size_is_ours
        self._inspect = inspect
        self._steps: Iterator[Step] = iter(())
        self._held: Step | None = None
        self._ready: tuple[Chunk, int] | None = None
        self.why_not_resumable = batches.why_not_resumable
        self._before = self._done = 0
        self._state: Any = None
        self._drawn_from = random_state.capture()

    def _count_steps(self) -> int | None:
        if self.cut.keeps_rest:
            known = self.batches.num_batches
            return known if known is None else -(-known // self.per_step)
        whole, group = self.batches.whole_batches, self.cut.group
        return whole if whole is None else whole // (self.per_step * group) * group

    def _is_own(self, place: int) -> bool:
        """Say whether a batch is of a replica of this process.

        The last ones are every replica's: one of them may be smaller, and then none is divided.
        """
        update = self.per_step * self.cut.group
        last = (self.batches.num_batches - 1) // update * update
        return place >= last or self.placement.is_own(place % self.per_step)

    def begin_epoch(self) -> None:
        if self.restarts:
            self.batches.reset()
        self._before, self._done = self.batches.taken_before, 0
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

    def place(self, *, epoch_over: bool) -> Place:
        before, done = (self.batches.taken_before, 0) if epoch_over else (self._before, self._done)
        state = self.batches.state if epoch_over and before == 0 else self._state
        samples = self._units_until(before), self._units_until(before + done)
        return Place(self._drawn_from, samples[0], samples[1] - samples[0], state)

    def seek(self, place: Place) -> int:
        self.batches.set_state(place.state)
        if place.before + place.done == 0:
            self.begin_epoch()
            return 0
        before, now = (
            self._batches_until(units) for units in (place.before, place.before + place.done)
        )
        self._before, self._done = before, now - before
        self._state, self._drawn_from = place.state, place.order
        here = random_state.capture()
        random_state.restore(place.order)
        self.batches.seek(before, self._done)
        self._begin(self._done)
        self._held = next(self._steps, None)
        # Keras draws the order of each batch as it reads it: reading is now where it was.
        if not (self.batches.batch_size_is_ours and self.batches.shuffle == "batch"):
            random_state.restore(here)
        return -(-self._done // self.per_step)

    def _units_until(self, batches: int) -> int:
        samples = self.batches.samples
        if samples is None:
            return batches
        return min(batches * self.batches.batch_size, samples)

    def _batches_until(self, units: int) -> int:
        group = self.cut.group
        if self.batches.samples is None:
            return steps_until(units, self.per_step, 0, group) * self.per_step
        return steps_until(units, self.batches.batch_size, self.batches.samples, group)

    def example(self) -> Any:
        self._held = self._held or next(self._steps, None)
        return self._held and shapes(self._held.batch)

    def next(self, limit: int) -> Chunk | None:
        ready, self._ready = self._ready or self._assemble(limit), None
        if ready is None:
            return None
        chunk, self._done = ready
        return chunk

    def prefetch(self, limit: int) -> None:
        self._ready = self._ready or self._assemble(limit)

    def _read(self, done: int) -> Iterator[Step]:
        """Group the input's batches into steps, after those that are done."""
        group: list[Any] = []
        read = 0
        for read, batch in enumerate(self.batches, start=1):
            if read <= done:
                continue
            if self._inspect is not None:
                self._inspect(batch)
                self._inspect = None
            if group and _shapes(batch) != _shapes(group[0]):
                yield from self._remainder(group, read - 1)
                group = []
            group.append(batch)
            if len(group) == self.per_step * self.cut.group:
                yield from self._whole(group, read)
                group = []
        yield from self._remainder(group, read)
        if self._left_out and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._left_out} samples of the epoch do not fill a weight update of "
                f"{self.cut.replicas} replicas x {self.cut.group} micro-batches and are left out. "
                f"Have the input yield a multiple of {self.cut.replicas * self.cut.group} batches, "
                "all of one size.",
                stacklevel=2,
            )

    def _whole(self, group: list[Any], read: int) -> Iterator[Step]:
        samples = _samples(group[0]) * self.per_step
        is_tail = self.batches.batch_size_is_ours and samples != self.batches.batch_size
        if is_tail or not self.cut.shards(samples):
            if not is_tail:
                self._say_undivided(samples)
            yield from self._remainder(group, read)
            return
        for start in range(0, len(group), self.per_step):
            parts = group[start : start + self.per_step]
            batch = jax.tree.map(_concatenate, *parts) if len(parts) > 1 else parts[0]
            position = read - len(group) + start + self.per_step
            yield Step(batch, samples, True, position)

    def _say_undivided(self, samples: int) -> None:
        if self._said_undivided or self.cut.replicas == 1:
            return
        self._said_undivided = True
        unit = self.cut.replicas * self.cut.parts
        warnings.warn(
            f"A batch of {samples} samples does not divide over {self.cut.replicas} replicas x "
            f"{self.cut.parts} micro-batches, so every replica computes all of it. Have the input "
            f"yield batches of a multiple of {unit}.",
            stacklevel=2,
        )

    def _remainder(self, group: list[Any], read: int) -> Iterator[Step]:
        for position, batch in enumerate(group, start=read - len(group) + 1):
            if self.cut.keeps_rest:
                yield Step(batch, _samples(batch), False, position)
            else:
                self._left_out += _samples(batch)

    def _assemble(self, limit: int) -> tuple[Chunk, int] | None:
        """Put the next steps of one shape into a block, and say how far they were read."""
        first = self._held or next(self._steps, None)
        self._held = None
        if first is None:
            return None
        group = self.cut.group
        fitting = self.budget // (BLOCKS_IN_FLIGHT * max(1, size(first.batch)))
        fitting = max(1, fitting // group) * group
        capacity = min(self.limit, fitting, self.steps or self.limit)
        steps = [first]
        while len(steps) < min(limit, capacity) and (step := next(self._steps, None)):
            if not step.alike(first):
                self._held = step
                break
            steps.append(step)
        block = jax.tree.map(lambda *rows: _stack(rows, capacity), *(s.batch for s in steps))
        chunk = block_chunk(block, len(steps), self.placement, self.cut, sharded=first.sharded)
        return chunk, steps[-1].position


def block_chunk(block: Any, steps: int, placement: Placement, cut: Cut, *, sharded: bool) -> Chunk:
    """Move a block of whole steps to the devices, cut into micro-batches."""
    samples = jax.tree.leaves(block)[0].shape[1]
    if not sharded:
        return Chunk("block", placement.everywhere(block), samples, steps, sharded=False)
    batch = samples // cut.parts
    block = jax.tree.map(lambda leaf: leaf.reshape(-1, batch, *leaf.shape[2:]), block)
    return Chunk("block", placement.divided(block), batch, steps, cut.parts)


def _stack(rows: tuple[Any, ...], capacity: int) -> np.ndarray:
    # Always `capacity` rows, so that a short block runs in the same program.
    rows = tuple(np.asarray(row) for row in rows)
    if capacity == 1:
        return rows[0][None]
    block = np.empty((capacity, *rows[0].shape), rows[0].dtype)
    for target, row in zip(block, rows, strict=False):
        target[...] = row
    return block


def _concatenate(*parts: Any) -> np.ndarray:
    return np.concatenate([np.asarray(part) for part in parts])


def _samples(batch: Any) -> int:
    return jax.tree.leaves(batch)[0].shape[0]


def _shapes(batch: Any) -> list[tuple]:
    return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch)]
