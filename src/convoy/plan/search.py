"""The best of all configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from convoy.plan.configuration import Configuration, configurations
from convoy.plan.predict import Prediction, Predictor


@dataclass(frozen=True)
class Found:
    """What a search has found.

    Attributes:
        best: what fits, the fastest first.
        fitting: how many configurations fit.
        too_large: how many configurations do not fit.
        smallest: of those, the one that needs the least memory, and how much it needs.
    """

    best: tuple[Prediction, ...]
    fitting: int
    too_large: int
    smallest: tuple[Configuration, float] | None


def search(predictor: Predictor, global_batch: int, best: int | None = None) -> Found:
    """Predict every sensible configuration, or those that may be among the best.

    Recomputing is never faster, so it is looked at only where keeping activations does not fit.

    Args:
        predictor: knows the network and the devices.
        global_batch: samples of a weight update.
        best: how many are asked for. What cannot be among them, as its slowest stage alone takes
            too long, is not simulated.
    """
    machine = predictor.machine
    most_stages = len(predictor.profile.may_cut) + 1
    fitting: set[Configuration] = set()
    large: list[tuple[Configuration, float]] = []
    for one in configurations(machine.devices, machine.per_host, global_batch, most_stages):
        if one.recompute and replace(one, recompute=False) in fitting:
            continue
        memory = predictor.memory(one)
        if memory > machine.memory:
            large.append((one, memory))
        else:
            fitting.add(one)
    bounds = sorted(((predictor.fastest(one), one) for one in fitting), key=lambda pair: pair[0])
    found: list[Prediction] = []
    for fastest, one in bounds:
        if best is not None and len(found) >= best and fastest > found[best - 1].seconds:
            break
        found.append(predictor.predict(one))
        found.sort(key=lambda prediction: prediction.seconds)
    found.sort(key=_rank)
    smallest = min(large, key=lambda pair: pair[1], default=None)
    return Found(tuple(found), len(fitting), len(large), smallest)


def _rank(prediction: Prediction) -> tuple[float, ...]:
    """Order by throughput; of what is level in three digits, the simpler first."""
    one = prediction.configuration
    return (
        -float(f"{prediction.throughput:.3g}"),
        one.stages,
        one.recompute,
        prediction.memory,
        -one.micro_batch,
    )
