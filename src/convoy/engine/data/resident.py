"""Arrays that are moved to the devices once, and indexed there."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
from convoy.engine import random_state
from convoy.engine.data.chunks import Chunk, Cut, Layout, Place, Placement, steps_until
from convoy.engine.data.device_put import aligned
from convoy.keras_bridge import Batches


class Resident:
    """Feeds from whole arrays on the devices, shuffled there by an order drawn once per epoch."""

    def __init__(
        self, arrays: Any, batches: Batches, placement: Placement, cut: Cut, *, training: bool
    ) -> None:
        self.samples = len(jax.tree.leaves(arrays)[0])
        self.batch = batches.batch_size
        self.shuffle = batches.shuffle
        self.cut = cut
        self.whole_steps = self.samples // (self.batch * cut.group) * cut.group
        self.tail = self.samples - self.whole_steps * self.batch if cut.keeps_rest else 0
        self.total = self.whole_steps + bool(self.tail)
        self.steps_per_epoch = batches.steps_per_epoch
        self.goes_on = training and self.steps_per_epoch is not None
        self.steps: int | None = self.steps_per_epoch or self.total
        self.placement = placement
        rows = min(self.batch, self.samples)
        self._example = jax.tree.map(lambda leaf: _rows(leaf, rows), arrays)
        if placement.platform == "cpu":
            arrays = aligned(arrays)  # virtual devices share the host's memory
        self.arrays = placement.everywhere(arrays)
        self.order: jax.Array | None = None
        self.why_not_resumable: str | None = None
        self.position = self.start = self.end = 0
        self._drawn_from = random_state.capture()

    def begin_epoch(self) -> None:
        # With `steps_per_epoch`, training goes on where the last epoch stopped.
        if not self.goes_on or self.position == self.total:
            self.position = 0
        if self.position == 0:
            self._begin_order()
        self._set_end()

    def make_repeatable(self) -> None:
        pass  # it is

    def place(self, *, epoch_over: bool) -> Place:
        if not epoch_over:
            before = self._samples_until(self.start)
            return Place(self._drawn_from, before, self._samples_until(self.position) - before)
        goes_on = self.goes_on and self.position < self.total
        return Place(self._drawn_from, self._samples_until(self.position) if goes_on else 0, 0)

    def seek(self, place: Place) -> int:
        if place.before + place.done == 0:
            self.position = 0
            self.begin_epoch()
            return 0
        before = self._steps_until(place.before)
        now = self._steps_until(place.before + place.done)
        with random_state.as_of(place.order):
            self._begin_order()
        self.position = before
        self._set_end()
        self.position = now
        return now - before

    def _samples_until(self, step: int) -> int:
        return min(step * self.batch, self.samples)

    def _steps_until(self, samples: int) -> int:
        return steps_until(samples, self.batch, self.samples, self.cut.group)

    def _begin_order(self) -> None:
        self._drawn_from = random_state.capture()
        self.order = self._draw_order()

    def _set_end(self) -> None:
        self.start = self.position
        wanted = self.position + (self.steps_per_epoch or self.total)
        self.end = min(wanted, self.total)
        if self.end < wanted:
            warnings.warn(
                f"The data ends after {self.end - self.position} of the {self.steps_per_epoch} "
                "steps of this epoch. Pass fewer steps, or more data.",
                stacklevel=6,
            )

    def example(self) -> Any:
        return self._example

    def next(self, limit: int) -> Chunk | None:
        if self.position == self.end:
            return None
        layout: Layout = "contiguous" if self.order is None else "ordered"
        source = (self.arrays, self.order, np.int32(self.position * self.batch))
        whole = self.position < self.whole_steps
        steps = min(limit, min(self.end, self.whole_steps) - self.position) if whole else 1
        self.position += steps
        if whole and self.cut.shards(self.batch):
            parts = self.cut.parts
            return Chunk(layout, source, self.batch // parts, steps, parts)
        return Chunk(layout, source, self.batch if whole else self.tail, steps, sharded=False)

    def prefetch(self, limit: int) -> None:
        del limit  # all of it is there

    def _draw_order(self) -> jax.Array | None:
        """Draw an epoch's order from NumPy's generator exactly as stock Keras does."""
        if not self.shuffle:
            return None
        if self.shuffle == "batch":
            starts = range(0, self.samples, self.batch)
            sizes = [min(self.batch, self.samples - start) for start in starts]
            order = np.concatenate(
                [
                    np.random.permutation(size) + start
                    for start, size in zip(starts, sizes, strict=True)
                ]
            )
        else:
            order = np.random.permutation(self.samples)
        return self.placement.everywhere(order.astype(np.int32))


def _rows(leaf: Any, rows: int) -> jax.ShapeDtypeStruct:
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), dtype)
