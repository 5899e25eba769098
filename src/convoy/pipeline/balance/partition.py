"""Where to cut a chain of calls, so that the slowest stage is as fast as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

Found = tuple[float, float, tuple[int, ...]]
"""The slowest stage, the sum of squares, and the cuts."""


def balance(
    costs: Sequence[float],
    stages: int,
    transfers: Sequence[float] = (),
    *,
    may_cut: Sequence[int] | None = None,
    fits: Callable[[int, int, int], bool] | None = None,
) -> list[int] | None:
    """Cut calls into stages of consecutive ones.

    Args:
        costs: the time of each call, forwards and backwards.
        stages: how many.
        transfers: the time to send on, in both directions, what is live after each call. It counts
            for both sides of a cut.
        may_cut: the calls with which a stage may begin; by default all but the first.
        fits: whether a stage from a call to before another one fits on its device, with so many
            stages after it.

    Returns:
        The first call of every stage but the first; `None` if no cut has stages that fit.

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
    places = range(1, len(costs)) if may_cut is None else sorted(may_cut)

    def cost(first: int, end: int) -> float:
        sent = transfers[end - 1] if transfers and end < len(costs) else 0.0
        received = transfers[first - 1] if transfers and first else 0.0
        return sums[end] - sums[first] + sent + received

    @cache
    def best(first: int, left: int) -> Found | None:
        """Return the best cuts of what begins at `first`, into as many stages as are left.

        Of cuts with the same slowest stage, the one with the smaller squares is the more even.
        """
        if left == 1:
            whole = cost(first, len(costs))
            return (whole, whole**2, ()) if _fits(first, len(costs), 0) else None
        found: Found | None = None
        for cut in places:
            if cut <= first:
                continue
            if found is not None and sums[cut] - sums[first] > found[0]:
                break  # so is every later cut, and no transfer makes up for it
            rest = best(cut, left - 1) if _fits(first, cut, left - 1) else None
            if rest is None:
                continue
            own = cost(first, cut)
            candidate = max(own, rest[0]), rest[1] + own**2, (cut, *rest[2])
            found = candidate if found is None else min(found, candidate)
        return found

    def _fits(first: int, end: int, after: int) -> bool:
        return fits is None or fits(first, end, after)

    found = best(0, stages)
    return None if found is None else list(found[2])
