"""What a network costs: time and memory of its layers, for any micro-batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[int, float]
"""Samples of a micro-batch, and the seconds of its step."""


@dataclass(frozen=True)
class Profile:
    """What a network costs.

    Attributes:
        names: of its calls, in the order in which they run.
        may_cut: the calls with which a stage may begin.
        shares: of each call, its part of a step's time; together 1.
        weights: of each call, bytes of its trainable variables.
        statistics: bytes of its other variables.
        activations: bytes that it computes for a sample.
        live: bytes for a sample that are read after it: what a cut here would send on.
        points: steps, forwards and backwards in one program, for some sizes of the micro-batch.
        forward: the forward pass's part of a step in two programs.
        divided: how many times as long a step takes in two programs, as in a stage.
        held: of what calls compute, the part that is held for the backward pass.
        source: where it comes from, for people.
    """

    names: tuple[str, ...]
    may_cut: tuple[int, ...]
    shares: tuple[float, ...]
    weights: tuple[int, ...]
    statistics: tuple[int, ...]
    activations: tuple[float, ...]
    live: tuple[float, ...]
    points: tuple[Point, ...]
    forward: float = 1 / 3
    divided: float = 1.0
    held: float = 1.0
    source: str = ""

    def step_seconds(self, samples: int) -> float:
        """Return the time of a step: on a line between known ones, and on through the outer two."""
        points = self.points
        if len(points) == 1:
            return points[0][1] * samples / points[0][0]
        place = bisect_left([size for size, _ in points], samples)
        place = min(max(place, 1), len(points) - 1)
        (small, fast), (large, slow) = points[place - 1 : place + 1]
        slope = (slow - fast) / (large - small)
        # Measured times may fall on a line that reaches zero too early.
        return max(fast + slope * (samples - small), 0.1 * fast * samples / small)

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights)


def normalised(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return each number's part of their sum."""
    whole = sum(seconds)
    return tuple(value / whole for value in seconds)
