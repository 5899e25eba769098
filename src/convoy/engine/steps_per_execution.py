"""How many steps one device call runs."""

from __future__ import annotations

import time
from typing import Any

import jax
from convoy import distributed

# Callbacks are promised once a second; steps vary in length, so aim for half of that.
TARGET_SECONDS = 0.5
# The first calls are not like the others (they compile, they touch memory): grow in stages.
GROWTH = 8
# An input that is streamed moves in blocks of at most so many steps.
BLOCK_STEPS = 32


class FixedPace:
    """`steps_per_execution=N`."""

    def __init__(self, steps: int, group: int = 1) -> None:
        # The default asks for no more than a weight update at a time.
        self.steps = self.block_steps = group if steps == 1 else steps

    def observe(self, steps: int, outcome: Any, start: float) -> None:
        del steps, outcome, start


class AutomaticPace:
    """`steps_per_execution="auto"`: as many steps as keep callbacks at least once a second."""

    def __init__(self, group: int = 1) -> None:
        self.group = self.steps = group
        self.block_steps = max(1, BLOCK_STEPS // group) * group
        self._warm = False

    def observe(self, steps: int, outcome: Any, start: float) -> None:
        """Take note of how long some steps took that began at `start`; waits for them."""
        jax.block_until_ready(outcome)
        if self._warm:
            fitting = int(TARGET_SECONDS * steps / (time.perf_counter() - start))
            groups = min(fitting, self.steps * GROWTH) // self.group
            self.steps = distributed.from_first(max(1, groups) * self.group)
        self._warm = True


Pace = FixedPace | AutomaticPace


def make_pace(steps_per_execution: int | str, group: int = 1) -> Pace:
    """Return the pace of a run whose steps come in groups: those of a weight update.

    Raises:
        ValueError: if a device call would end inside of a weight update.
    """
    if steps_per_execution == "auto":
        return AutomaticPace(group)
    steps = int(steps_per_execution)
    if steps > 1 and steps % group:
        near = max(1, round(steps / group)) * group
        raise ValueError(
            f"steps_per_execution={steps} is not a multiple of gradient_accumulation={group}, so a "
            f"device call would end inside of a weight update. Pass {near}, or 'auto'."
        )
    return FixedPace(steps, group)
