"""Data that is moved to the devices once, and indexed there."""

import jax
import numpy as np
from convoy import keras_bridge, user_warnings
from convoy.engine import checks, random_state
from convoy.engine.data.chunks import Chunk, DataPosition, Layout, StepDivision
from convoy.engine.data.placement import Placement, aligned
from convoy.types import PyTree, Shapes


class Resident:
    """A feed of whole arrays on the devices, shuffled there by an order drawn once per epoch.

    Args:
        arrays: the data as host arrays.
        step_samples: samples of a step, over all replicas.
        placement: the devices.
        division: the division of the data into steps.
        shuffle: as in `keras.Model.fit`.
        steps_per_epoch: steps in an epoch, if not all of the data.
        training: whether an epoch begins where the last one ended, if `steps_per_epoch` is set.
    """

    def __init__(
        self,
        arrays: PyTree,
        step_samples: int,
        placement: Placement,
        division: StepDivision,
        *,
        shuffle: bool | str = False,
        steps_per_epoch: int | None = None,
        training: bool = False,
    ) -> None:
        self.samples = len(jax.tree.leaves(arrays)[0])
        self.step_samples = step_samples
        self.shuffle = shuffle
        self.division = division
        self.is_sharded = self.step_samples % division.parts == 0
        update = self.step_samples * division.steps_per_update
        self.complete_steps = self.samples // update * division.steps_per_update
        left = self.samples - self.complete_steps * self.step_samples
        self.incomplete_samples = left if division.keeps_incomplete else 0
        self.total = self.complete_steps + bool(self.incomplete_samples)
        self.steps_per_epoch = steps_per_epoch
        self.continues = training and steps_per_epoch is not None
        self.steps: int | None = self.steps_per_epoch or self.total
        self.placement = placement
        rows = min(self.step_samples, self.samples)
        self._example = jax.tree.map(lambda leaf: _row_shapes(leaf, rows), arrays)
        if placement.platform == "cpu":
            arrays = aligned(arrays)  # virtual devices share the host's memory
        self.arrays = placement.replicate(arrays)
        self.order: jax.Array | None = None
        self.resume_obstacle: str | None = None
        self.step = self.start = self.end = 0
        self._is_drawn = self._is_repeatable = False
        self._drawn_from: random_state.RandomState | None = None

    def begin_epoch(self) -> None:
        if not self.continues or self.step == self.total:
            self.step = 0
        if self.step == 0:
            # As in stock Keras, the order is drawn when the first batch is read. If a callback
            # raises an exception before that, the state of the generator does not change.
            self._is_drawn = False
        self._set_end()

    def make_repeatable(self) -> None:
        """Store the random state before each order is drawn; it determines the order."""
        self._is_repeatable = True

    def position(self, *, epoch_over: bool) -> DataPosition:
        drawn_from = self._drawn_from if self._is_drawn else None
        drawn_from = drawn_from or random_state.capture()
        if not epoch_over:
            before = self._samples_until(self.start)
            return DataPosition(drawn_from, before, self._samples_until(self.step) - before)
        continues = self.continues and self.step < self.total
        return DataPosition(drawn_from, self._samples_until(self.step) if continues else 0, 0)

    def seek(self, position: DataPosition) -> int:
        if position.before + position.done == 0:
            self.step = 0
            self.begin_epoch()
            return 0
        before = self._steps_until(position.before)
        now = self._steps_until(position.before + position.done)
        with random_state.as_of(position.order):
            self._draw_order()
        self.step = before
        self._set_end()
        self.step = now
        return now - before

    def _samples_until(self, step: int) -> int:
        return min(step * self.step_samples, self.samples)

    def _steps_until(self, samples: int) -> int:
        return self.division.steps_until(samples, self.step_samples, self.samples)

    def _set_end(self) -> None:
        self.start = self.step
        wanted = self.step + (self.steps_per_epoch or self.total)
        self.end = min(wanted, self.total)
        if self.end < wanted:
            user_warnings.warn(
                f"The data ends after {self.end - self.step} of the {self.steps_per_epoch} "
                "steps of this epoch. Pass fewer steps, or more data."
            )

    def example(self) -> Shapes:
        return self._example

    def next(self, max_steps: int) -> Chunk | None:
        if self.step == self.end:
            return None
        if not self._is_drawn:
            self._draw_order()
        layout: Layout = "contiguous" if self.order is None else "ordered"
        source = (self.arrays, self.order, np.int32(self.step * self.step_samples))
        is_complete = self.step < self.complete_steps
        complete_left = min(self.end, self.complete_steps) - self.step
        steps = min(max_steps, complete_left) if is_complete else 1
        self.step += steps
        if is_complete and self.is_sharded:
            per_step = self.division.micro_batches_per_step
            return Chunk(layout, source, self.step_samples // per_step, steps, steps * per_step)
        samples = self.step_samples if is_complete else self.incomplete_samples
        return Chunk(layout, source, samples, steps, steps, sharded=False)

    def prefetch(self, max_steps: int) -> None:
        """Do nothing: all data is on the devices."""

    def first_not_finite(self) -> str | None:
        x, _, _ = keras_bridge.unpack(self.arrays)
        return checks.first_not_finite(x)

    def _draw_order(self) -> None:
        """Draw an epoch's order from NumPy's generator exactly as stock Keras does."""
        self._is_drawn = True
        if self._is_repeatable:
            self._drawn_from = random_state.capture()
        if not self.shuffle:
            self.order = None
            return
        if self.shuffle == "batch":
            order = np.concatenate(
                [
                    np.random.permutation(min(self.step_samples, self.samples - start)) + start
                    for start in range(0, self.samples, self.step_samples)
                ]
            )
        else:
            order = np.random.permutation(self.samples)
        self.order = self.placement.replicate(order.astype(np.int32))


def _row_shapes(leaf: np.ndarray | jax.Array, rows: int) -> jax.ShapeDtypeStruct:
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), dtype)
