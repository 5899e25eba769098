"""Where to cut a model by what its layers cost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate

import jax
import keras
from convoy import devices as device_choice
from convoy import distributed, keras_bridge
from convoy.engine.data.chunks import size
from convoy.keras_bridge import GraphCall
from convoy.pipeline.assignment import calls_of
from convoy.pipeline.balance.layer_costs import Cost, measure, transfer_seconds
from convoy.pipeline.balance.partition import balance

logger = logging.getLogger("convoy.pipeline")

# Of an even share; a stage with less is warned of.
LEAST_SHARE = 0.1
# Arrays of a weight's size in the optimizer, where it has not been built yet: those of Adam.
SLOTS = 2


def split_by_cost(
    model: keras.Model, stages: int, batch_size: int, devices: Sequence[jax.Device]
) -> list[int]:
    """Return the stage of every call, so that the slowest stage is as fast as can be.

    Every layer is timed, and so is a transfer between devices. Cuts that would put a layer that
    runs several times on two devices are left out, and those whose stages do not fit into memory.

    Args:
        model: a functional or sequential model.
        stages: how many.
        batch_size: samples of a micro-batch.
        devices: those of the strategy.

    Raises:
        ValueError: if the model has no such cut.
    """
    calls = calls_of(model)
    may_cut = cuts_that_share_nothing(calls)
    if len(may_cut) < stages - 1:
        raise ValueError(_too_few(model, calls, may_cut, stages))
    costs = measure(model, calls, batch_size, devices[0])
    rate = transfer_seconds(devices)
    limit = device_choice.memory(tuple(devices))
    needs = Memory(costs, _slots(model))
    cuts = balance(
        [cost.seconds for cost in costs],
        stages,
        [2 * rate * cost.live for cost in costs],
        may_cut=may_cut,
        fits=lambda first, end, after: needs.bytes(first, end, after) <= limit,
    )
    if cuts is None:
        raise ValueError(
            f"{model.name!r} cannot be cut into {stages} stages that fit into the "
            f"{limit / 1e9:.3g} GB of a device: one would take more, whatever the cut. Ask for "
            "more stages, or pass a smaller batch_size."
        )
    if distributed.index() == 0:
        _tell(model, calls, costs, cuts)
    return [sum(position >= cut for cut in cuts) for position in range(len(calls))]


def _tell(
    model: keras.Model, calls: Sequence[GraphCall], costs: Sequence[Cost], cuts: Sequence[int]
) -> None:
    """Log the share of each stage, and warn of one that has next to nothing to do."""
    firsts = [0, *cuts]
    seconds = [
        sum(cost.seconds for cost in costs[first:end])
        for first, end in zip(firsts, [*cuts, len(costs)], strict=True)
    ]
    total = sum(seconds)
    if not total:
        return
    shares = [each / total for each in seconds]
    logger.info(
        "%s in %d stages of %s of the time",
        model.name,
        len(shares),
        ", ".join(f"{share:.1%}" for share in shares),
    )
    least = min(range(len(shares)), key=lambda stage: shares[stage])
    if shares[least] < LEAST_SHARE / len(shares):
        logger.warning(
            "The cut of %r is very uneven: stage %d, which begins with layer %r, has %.1f %% of "
            "the time, so its device mostly waits. Ask for fewer stages, or cut by names of "
            "layers.",
            model.name,
            least,
            calls[firsts[least]].name,
            100 * shares[least],
        )


class Memory:
    """How much memory some consecutive calls take as a stage.

    Args:
        costs: of all calls.
        slots: arrays of the optimizer for every weight.
    """

    def __init__(self, costs: Sequence[Cost], slots: float) -> None:
        # A weight, its gradient, and what the optimizer keeps of it.
        state = [cost.weights * (2 + slots) + cost.statistics for cost in costs]
        self._state = [0.0, *accumulate(state)]
        self._activations = [0, *accumulate(cost.activations for cost in costs)]

    def bytes(self, first: int, end: int, after: int) -> float:
        """Return the bytes of calls `first` to `end` as a stage with `after` stages after it.

        It holds a micro-batch for itself and for each of them, as with 1F1B.
        """
        activations = self._activations[end] - self._activations[first]
        return self._state[end] - self._state[first] + (after + 1) * activations


def cuts_that_share_nothing(calls: Sequence[GraphCall]) -> list[int]:
    """Return the calls with which a stage may begin: none between two calls of one layer."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, call in enumerate(calls):
        for variable in call.variables:
            first.setdefault(id(variable), position)
            last[id(variable)] = position
    inside = {p for v in first for p in range(first[v] + 1, last[v] + 1)}
    return [position for position in range(1, len(calls)) if position not in inside]


def _too_few(
    model: keras.Model, calls: Sequence[GraphCall], may_cut: Sequence[int], stages: int
) -> str:
    names = [call.name for call in calls if call.variables]
    shared = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    because = (
        f" Layer {shared[0]!r} runs several times, which must be in one stage." if shared else ""
    )
    return (
        f"{model.name!r} has {len(calls)} layers and {len(may_cut)} places to cut, too few for "
        f"{stages} stages.{because} Ask for at most {len(may_cut) + 1}."
    )


def _slots(model: keras.Model) -> float:
    optimizer = getattr(model, "optimizer", None)
    weights = size(keras_bridge.values(list(model.trainable_variables)))
    if optimizer is None or not optimizer.built or not weights:
        return SLOTS
    return size(keras_bridge.values(list(optimizer.variables))) / weights
