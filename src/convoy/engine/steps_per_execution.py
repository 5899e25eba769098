"""The number of steps in one device call."""

import time
from typing import Literal

import jax
from convoy import distributed
from convoy.types import PyTree

# Callbacks must run at least once a second. Step times vary, so the target is half a second.
TARGET_SECONDS = 0.5
# The first calls compile and allocate memory, so the number grows gradually.
GROWTH = 8
# Steps in a block of streamed data while the number is chosen automatically.
STEPS_PER_BLOCK = 32


class StepsPerExecution:
    """`steps_per_execution` of a run: a fixed number, or `"auto"`.

    With `"auto"` it is the largest number for which callbacks run at least once a second.

    Args:
        steps_per_execution: as passed to `compile`; 1 runs one weight update at a time.
        steps_per_update: number of steps of a weight update, which must run in one device call.

    Attributes:
        value: steps of the next device call.
        steps_per_block: steps for which a block of streamed data has room.
        automatic: whether the value changes.

    Raises:
        ValueError: if a device call would end inside of a weight update.
    """

    def __init__(
        self, steps_per_execution: int | Literal["auto"], steps_per_update: int = 1
    ) -> None:
        self.steps_per_update = steps_per_update
        self.automatic = steps_per_execution == "auto"
        self._is_warm = False
        self.value: int = steps_per_update
        if steps_per_execution == "auto":
            self.steps_per_block = max(1, STEPS_PER_BLOCK // steps_per_update) * steps_per_update
            return
        if steps_per_execution > 1:
            self.value = int(steps_per_execution)
        self.steps_per_block = self.value
        if self.value % steps_per_update:
            near = max(1, round(self.value / steps_per_update)) * steps_per_update
            raise ValueError(
                f"steps_per_execution={self.value} is not a multiple of "
                f"gradient_accumulation={steps_per_update}, so a device call would end inside of a "
                f"weight update. Pass {near}, or 'auto'."
            )

    def adapt(self, steps: int, outcomes: list[PyTree], start: float) -> None:
        """Choose the next value; this waits for the devices.

        Args:
            steps: steps that were run.
            outcomes: results of their device calls.
            start: the time at which they began.
        """
        jax.block_until_ready(outcomes)
        if self._is_warm:
            fitting = int(TARGET_SECONDS * steps / (time.perf_counter() - start))
            updates = min(fitting, self.value * GROWTH) // self.steps_per_update
            self.value = distributed.from_first(max(1, updates) * self.steps_per_update)
        self._is_warm = True
