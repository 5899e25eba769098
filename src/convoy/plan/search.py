"""Parallel configurations of a weight update, and the search for the fastest ones."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from convoy.plan.predict import ParallelConfiguration, Prediction, Predictor

SCHEDULES = ("1f1b", "zero-bubble", "gpipe")
MAX_MICRO_BATCH = 256
MAX_STAGES = 16
# Pipelines that use a smaller fraction of the devices are skipped.
MIN_USED_DEVICES = 0.9


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        best: predictions for configurations that fit, the fastest first.
        fitting: number of configurations that fit.
        too_large: number of configurations that do not fit.
        smallest: the too large configuration that needs the least memory, and its bytes.
    """

    best: tuple[Prediction, ...]
    fitting: int
    too_large: int
    smallest: tuple[ParallelConfiguration, float] | None


def configurations(
    devices: int, per_host: int, global_batch: int, max_stages: int
) -> Iterator[ParallelConfiguration]:
    """Yield the configurations with a given global batch, except those that are never the best.

    The number of stages is limited by the devices of a host. For each number of stages, the number
    of replicas is the largest that the devices allow and that divides the global batch; it is
    skipped if many devices would be idle. Each micro-batch size must divide a replica's local
    batch. All schedules are included except `sequential`, which is never faster.

    Args:
        devices: number of devices.
        per_host: devices per host; all stages of a replica are on one host.
        global_batch: samples per weight update.
        max_stages: number of stages that the model can be split into.
    """
    for stages in range(1, min(devices, per_host, max_stages, MAX_STAGES) + 1):
        max_replicas = devices // per_host * (per_host // stages) + devices % per_host // stages
        candidates = range(min(max_replicas, global_batch), 0, -1)
        replicas = next(n for n in candidates if global_batch % n == 0)
        if stages > 1 and replicas * stages < MIN_USED_DEVICES * min(devices, global_batch):
            continue
        local_batch = global_batch // replicas
        sizes = range(1, min(local_batch, MAX_MICRO_BATCH) + 1)
        for micro_batch, schedule, activation_checkpointing in product(
            [n for n in sizes if local_batch % n == 0],
            SCHEDULES if stages > 1 else ("",),
            (False, True),
        ):
            yield ParallelConfiguration(
                replicas,
                stages,
                micro_batch,
                local_batch // micro_batch,
                schedule,
                activation_checkpointing,
            )


def search(predictor: Predictor, global_batch: int, best: int | None = None) -> SearchResult:
    """Predict all configurations, or those that may be among the best.

    Activation checkpointing is never faster, so it is considered only if a configuration does not
    fit without it.

    Args:
        predictor: predictor for a network on a machine.
        global_batch: samples per weight update.
        best: number of predictions that are needed. A configuration whose slowest stage alone takes
            too long to be among them is not simulated.
    """
    machine = predictor.machine
    max_stages = len(predictor.profile.allowed_cuts) + 1
    fitting: list[ParallelConfiguration] = []
    too_large: list[tuple[ParallelConfiguration, float]] = []
    for one in configurations(machine.devices, machine.per_host, global_batch, max_stages):
        if one.activation_checkpointing and replace(one, activation_checkpointing=False) in fitting:
            continue
        memory = predictor.memory(one)
        if memory > machine.memory:
            too_large.append((one, memory))
        else:
            fitting.append(one)
    bounds = sorted(((predictor.lower_bound(one), one) for one in fitting), key=lambda b: b[0])
    found: list[Prediction] = []
    for bound, one in bounds:
        if best is not None and len(found) >= best and bound > found[best - 1].seconds:
            break
        found.append(predictor.predict(one))
        found.sort(key=lambda prediction: prediction.seconds)
    found.sort(key=_rank)
    smallest = min(too_large, key=lambda pair: pair[1], default=None)
    return SearchResult(tuple(found), len(fitting), len(too_large), smallest)


def _rank(prediction: Prediction) -> tuple[float, ...]:
    """Order by throughput; if it is equal to three digits, by simplicity."""
    one = prediction.configuration
    return (
        -float(f"{prediction.throughput:.3g}"),
        one.stages,
        one.activation_checkpointing,
        prediction.memory,
        -one.micro_batch,
    )
