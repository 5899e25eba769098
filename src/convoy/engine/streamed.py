"""Batches that are read while training runs, and moved to the devices a block at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from convoy.engine.feed import Chunk, Placement, shapes, size
from convoy.keras_bridge import Batches

# One computing, one waiting for it, one being put together, and its copy on the way.
BLOCKS_IN_FLIGHT = 4


class Step(NamedTuple):
    """The data of one step, as host arrays."""

    batch: Any
    samples: int
    spread: bool

    def alike(self, other: Step) -> bool:
        return self.spread == other.spread and _shapes(self.batch) == _shapes(other.batch)


class Streamed:
    """Feeds from anything that can be iterated over.

    Args:
        batches: Keras's walk over the input.
        placement: where data goes.
        budget: bytes that all blocks in flight may take on a device.
        limit: the most steps that one device call will run.
        training: whether samples that do not fill a step of all replicas are left out; else they
            are computed on every replica.
        restarts: whether every epoch begins anew, where the last one may have stopped before the
            end.
        inspect: called with the first batch, before anything is compiled for it.
    """

    def __init__(
        self,
        batches: Batches,
        placement: Placement,
        budget: int,
        limit: int,
        *,
        training: bool,
        restarts: bool = False,
        inspect: Callable[[Any], None] | None = None,
    ) -> None:
        self.batches = batches
        self.placement = placement
        self.budget = budget
        self.limit = limit
        self.training = training
        self.restarts = restarts
        # A batch of arrays is cut for all replicas; any other input yields a replica's batches.
        self.per_step = 1 if batches.batch_size_is_ours else placement.replicas
        known = batches.num_batches
        self.steps = known if known is None else -(-known // self.per_step)
        self._left_out = 0
        self._warned = False
        self._inspect = inspect
        self._steps: Iterator[Step] = iter(())
        self._held: Step | None = None
        self._ready: Chunk | None = None

    def begin_epoch(self) -> None:
        if self.restarts:
            self.batches.reset()
        self._steps = self._read()
        self._held = self._ready = None
        self._left_out = 0

    def example(self) -> Any:
        self._held = self._held or next(self._steps, None)
        return self._held and shapes(self._held.batch)

    def next(self, limit: int) -> Chunk | None:
        chunk, self._ready = self._ready or self._assemble(limit), None
        return chunk

    def prefetch(self, limit: int) -> None:
        self._ready = self._ready or self._assemble(limit)

    def _read(self) -> Iterator[Step]:
        """Group the input's batches into steps."""
        group: list[Any] = []
        for batch in self.batches:
            if self._inspect is not None:
                self._inspect(batch)
                self._inspect = None
            if group and _shapes(batch) != _shapes(group[0]):
                yield from self._remainder(group)
                group = []
            group.append(batch)
            if len(group) == self.per_step:
                yield from self._whole(group)
                group = []
        yield from self._remainder(group)
        if self._left_out and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._left_out} samples at the end of the epoch do not fill a weight update of "
                f"{self.placement.replicas} replicas and are left out. Have the input yield a "
                "multiple of that number of batches, all of one size.",
                stacklevel=2,
            )

    def _whole(self, group: list[Any]) -> Iterator[Step]:
        samples = _samples(group[0]) * len(group)
        expected = self.batches.batch_size if self.batches.batch_size_is_ours else samples
        if self.placement.replicas > 1 and samples != expected:
            yield from self._remainder(group)
        else:
            batch = jax.tree.map(_concatenate, *group) if len(group) > 1 else group[0]
            yield Step(batch, samples, spread=True)

    def _remainder(self, group: list[Any]) -> Iterator[Step]:
        for batch in group:
            if not self.training:
                yield Step(batch, _samples(batch), spread=False)
            else:
                self._left_out += _samples(batch)

    def _assemble(self, limit: int) -> Chunk | None:
        """Put the next steps of one shape into a block."""
        first = self._held or next(self._steps, None)
        self._held = None
        if first is None:
            return None
        fitting = max(1, self.budget // (BLOCKS_IN_FLIGHT * max(1, size(first.batch))))
        capacity = min(self.limit, fitting, self.steps or self.limit)
        steps = [first]
        while len(steps) < min(limit, capacity) and (step := next(self._steps, None)):
            if not step.alike(first):
                self._held = step
                break
            steps.append(step)
        block = jax.tree.map(lambda *rows: _stack(rows, capacity), *(s.batch for s in steps))
        place = self.placement.divided if first.spread else self.placement.everywhere
        return Chunk("block", place(block), first.samples, len(steps), first.spread)


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
