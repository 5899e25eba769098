"""How many steps one device call runs."""

from __future__ import annotations

import time
from typing import Any

import jax

# Callbacks are promised once a second; steps vary in length, so aim for half of that.
TARGET_SECONDS = 0.5
# A call's first run includes compilation, and a faster one may be a lucky one: grow in stages.
GROWTH = 8
# An input that is streamed moves in blocks of at most so many steps.
BLOCK_STEPS = 32


class FixedPace:
    """`steps_per_execution=N`."""

    def __init__(self, steps: int) -> None:
        self.steps = self.block_steps = steps

    def observe(self, steps: int, results: Any) -> None:
        del steps, results


class AutomaticPace:
    """`steps_per_execution="auto"`: as many steps as keep callbacks at least once a second."""

    block_steps = BLOCK_STEPS

    def __init__(self) -> None:
        self.steps = 1
        self._last = time.perf_counter()
        self._warm = False

    def observe(self, steps: int, results: Any) -> None:
        """Take note of a device call that has run `steps` steps."""
        jax.block_until_ready(results)
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        if self._warm:
            fitting = int(TARGET_SECONDS * steps / elapsed)
            self.steps = max(1, min(fitting, self.steps * GROWTH))
        self._warm = True


Pace = FixedPace | AutomaticPace


def make_pace(steps_per_execution: int | str) -> Pace:
    if steps_per_execution == "auto":
        return AutomaticPace()
    return FixedPace(int(steps_per_execution))
