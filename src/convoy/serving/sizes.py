"""Which sizes of batch to compute a number of samples in.

Seven samples can be a batch of eight, filled up, or batches of four, two and one. What is faster
depends on the machine: a GPU takes hardly longer for eight than for one, and a CPU eight times as
long. So every size is timed when a model is loaded, and the cheapest sum of times is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

# What a call takes beside the model: putting requests together, changing threads, answering.
CALL_SECONDS = 2e-4
# Of the most samples a second.
ENOUGH = 0.9
TIMED_TURNS = 3
# Of a size in one turn.
MOST_RUNS = 4


@dataclass(frozen=True)
class _Cover:
    """Sizes that hold a number of samples, the largest first, and the time they take together."""

    seconds: float
    sizes: tuple[int, ...]


class Sizes:
    """The sizes of batch that a model was compiled for.

    Args:
        seconds: how long each size takes.
        limit: larger ones are not used; the smallest always is.
        lanes: in how many places batches are computed at a time.

    Attributes:
        largest: of the sizes.
        enough: the smallest size whose samples take hardly longer than those of any other. To join
            more requests would only make the first of them wait for the last.
        rate: the most samples a second, in all lanes.
    """

    def __init__(
        self, seconds: Mapping[int, float], limit: int | None = None, lanes: int = 1
    ) -> None:
        usable = [size for size in seconds if limit is None or size <= limit] or [min(seconds)]
        self.largest = max(usable)
        # Python does one thing at a time.
        rates = {size: lanes * size / (seconds[size] + lanes * CALL_SECONDS) for size in usable}
        self.rate = max(rates.values())
        self.enough = min(size for size in usable if rates[size] >= ENOUGH * self.rate)
        covers = [_Cover(0.0, ())]
        for samples in range(1, self.largest + 1):
            choices = []
            for size in usable:
                rest = covers[max(0, samples - size)]
                sizes = tuple(sorted((size, *rest.sizes), reverse=True))
                choices.append(_Cover(seconds[size] + CALL_SECONDS + rest.seconds, sizes))
            covers.append(min(choices, key=lambda cover: cover.seconds))
        self._covers = covers

    def to_hold(self, samples: int) -> tuple[int, ...]:
        """Return the sizes that hold some samples in the shortest time, the largest first."""
        whole, rest = divmod(samples, self.largest)
        return self._covers[self.largest].sizes * whole + self._covers[rest].sizes


def timed(run: Callable[[int], object], sizes: Collection[int]) -> dict[int, float]:
    """Return how long batches of some sizes take: the shortest of a few, in turns.

    A machine that is busy for a second would else be held for one on which some size is slow, and
    requests be joined accordingly from then on.
    """
    seconds = dict.fromkeys(sizes, math.inf)
    for _ in range(TIMED_TURNS if sizes else 0):
        for size in sizes:
            for _ in range(min(MOST_RUNS, max(sizes) // size)):
                began = time.perf_counter()
                run(size)
                seconds[size] = min(seconds[size], time.perf_counter() - began)
    return seconds
