"""How many steps one device call runs."""

from __future__ import annotations

import time
from typing import Any

import jax

# Callbacks are promised once a second; steps vary in length, so aim for half of that.
TARGET_SECONDS = 0.5
# The first calls are not like the others (they compile, they touch memory): grow in stages.
GROWTH = 8
# An input that is streamed moves in blocks of at most so many steps.
BLOCK_STEPS = 32


class FixedPace:
    """`steps_per_execution=N`."""

    def __init__(self, steps: int) -> None:
        self.steps = self.block_steps = steps

    def observe(self, steps: int, outcome: Any, start: float) -> None:
        del steps, outcome, start


class AutomaticPace:
    """`steps_per_execution="auto"`: as many steps as keep callbacks at least once a second."""

    block_steps = BLOCK_STEPS

    def __init__(self) -> None:
        self.steps = 1
        self._warm = False

    def observe(self, steps: int, outcome: Any, start: float) -> None:
        """Take note of how long some steps took that began at `start`; waits for them."""
        jax.block_until_ready(outcome)
        if self._warm:
            fitting = int(TARGET_SECONDS * steps / (time.perf_counter() - start))
            self.steps = max(1, min(fitting, self.steps * GROWTH))
        self._warm = True


Pace = FixedPace | AutomaticPace


def make_pace(steps_per_execution: int | str) -> Pace:
    if steps_per_execution == "auto":
        return AutomaticPace()
    return FixedPace(int(steps_per_execution))
