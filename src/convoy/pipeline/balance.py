"""Where to cut a chain of calls, so that the slowest stage is as fast as can be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate


def balance(costs: Sequence[float], stages: int, transfers: Sequence[float] = ()) -> list[int]:
    """Cut calls into stages of consecutive ones.

    Args:
        costs: the time of each call, forwards and backwards.
        stages: how many.
        transfers: the time to send on, in both directions, what is live after each call. It counts
            for both sides of a cut.

    Returns:
        The first call of every stage but the first.

    Raises:
        ValueError: if there are fewer calls than stages.
    """
    if stages > len(costs):
        raise ValueError(
            f"{len(costs)} layers cannot be cut into {stages} stages. Ask for at most {len(costs)}."
        )
    if stages < 1:
        raise ValueError(f"stages={stages} is not a number of stages. Pass 1 or more.")
    sums = [0.0, *accumulate(costs)]

    def cost(first: int, end: int) -> float:
        sent = transfers[end - 1] if transfers and end < len(costs) else 0.0
        received = transfers[first - 1] if transfers and first else 0.0
        return sums[end] - sums[first] + sent + received

    @cache
    def best(first: int, left: int) -> tuple[float, float, tuple[int, ...]]:
        """Return the slowest stage, the sum of squares, and the cuts of what begins at `first`.

        Of cuts with the same slowest stage, the one with the smaller squares is the more even.
        """
        if left == 1:
            whole = cost(first, len(costs))
            return whole, whole**2, ()
        found = []
        for cut in range(first + 1, len(costs) - left + 2):
            own = cost(first, cut)
            slowest, squares, cuts = best(cut, left - 1)
            found.append((max(own, slowest), squares + own**2, (cut, *cuts)))
        return min(found)

    return list(best(0, stages)[2])
