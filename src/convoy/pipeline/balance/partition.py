"""Partition of a chain of calls into stages, so that the slowest stage is as fast as possible."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate

from convoy.arguments import whole_number
from convoy.keras_bridge import GraphCall
from convoy.pipeline.balance.layer_costs import LayerSizes

Solution = tuple[float, float, tuple[int, ...]]
"""Time of the slowest stage, sum of the squared times of all stages, and the cuts."""


def partition(
    costs: Sequence[float],
    stages: int,
    transfers: Sequence[float] = (),
    *,
    allowed: Sequence[int] | None = None,
    fits: Callable[[int, int, int], bool] = lambda *_: True,
) -> list[int] | None:
    """Partition calls into stages of consecutive calls.

    Args:
        costs: time of each call, forward and backward.
        stages: number of stages.
        transfers: time to send the tensors that are live after each call, forward and backward. It
            counts for both stages at a cut.
        allowed: calls with which a stage may begin; by default all but the first.
        fits: function that returns whether a stage fits on its device, given its first call, the
            call after its last one, and the number of stages after it. By default all stages fit.

    Returns:
        The first call of every stage but the first; `None` if there are no stages that fit.

    Raises:
        ValueError: if there are fewer calls than stages.
    """
    if stages > len(costs):
        raise ValueError(
            f"{len(costs)} layers cannot be split into {stages} stages. Request at most "
            f"{len(costs)}."
        )
    whole_number("stages", stages, "a number of stages")
    sums = [0.0, *accumulate(costs)]
    cuts = range(1, len(costs)) if allowed is None else sorted(allowed)

    # Dynamic programming over suffixes. The best partition of the calls from `first` on into
    # `left` stages is, over all ends of its first stage, that stage and the best partition of the
    # remaining calls into one stage less:
    #
    #     call     0   1   2 | 3   4   5   6 | 7   8   9
    #                        ^ first         ^ cut
    #                        +--- stage -----+--- best(cut, left - 1) ---
    #
    #     best(first, left) = min over cuts of max(cost(first, cut), best(cut, left - 1))
    #
    # Each pair (first, left) is solved once, so there are at most stages x calls x cuts steps.
    # Among partitions with the same slowest stage, the smallest sum of squares is the most even
    # partition.

    def cost(first: int, end: int) -> float:
        sent = transfers[end - 1] if transfers and end < len(costs) else 0.0
        received = transfers[first - 1] if transfers and first else 0.0
        return sums[end] - sums[first] + sent + received

    @cache
    def best(first: int, left: int) -> Solution | None:
        if left == 1:
            seconds = cost(first, len(costs))
            return (seconds, seconds**2, ()) if fits(first, len(costs), 0) else None
        found: Solution | None = None
        for cut in cuts:
            if cut <= first:
                continue
            # If a stage takes longer than the best result so far, later cuts only make it longer,
            # and no transfer compensates for this.
            if found is not None and sums[cut] - sums[first] > found[0]:
                break
            remaining = best(cut, left - 1) if fits(first, cut, left - 1) else None
            if remaining is None:
                continue
            own = cost(first, cut)
            candidate = max(own, remaining[0]), remaining[1] + own**2, (cut, *remaining[2])
            found = candidate if found is None else min(found, candidate)
        return found

    solution = best(0, stages)
    return None if solution is None else list(solution[2])


def allowed_cuts(calls: Sequence[GraphCall]) -> list[int]:
    """Return the calls at which a stage may begin, which are not between two calls of one layer."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, call in enumerate(calls):
        for variable in call.variables:
            first.setdefault(id(variable), position)
            last[id(variable)] = position
    between = {p for v in first for p in range(first[v] + 1, last[v] + 1)}
    return [position for position in range(1, len(calls)) if position not in between]


class StageMemory:
    """Memory of consecutive calls as a stage.

    Args:
        layers: sizes of all calls.
        slots: optimizer slots per weight.
    """

    def __init__(self, layers: Sequence[LayerSizes], slots: float) -> None:
        # A weight, its gradient, and the optimizer's slots.
        state = [layer.weights * (2 + slots) + layer.statistics for layer in layers]
        self._state = [0.0, *accumulate(state)]
        self._activations = [0, *accumulate(layer.activations for layer in layers)]

    def bytes(self, first: int, end: int, after: int) -> float:
        """Return the bytes of calls `first` to `end - 1` as a stage with `after` stages after it.

        With 1F1B, it holds the activations of one micro-batch, and of one more per later stage.
        """
        activations = self._activations[end] - self._activations[first]
        return self._state[end] - self._state[first] + (after + 1) * activations
