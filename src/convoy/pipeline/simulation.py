"""Simulation of schedules: the time they take, and how many micro-batches each device holds."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from convoy.pipeline.schedule import Action, Kind, Schedule
from convoy.pipeline.timeline import Event, Timeline
from convoy.pipeline.validation import validate

# A backward pass computes two products for each product of the forward pass.
DURATIONS = {
    Kind.FORWARD: 1.0,
    Kind.BACKWARD: 2.0,
    Kind.BACKWARD_INPUT: 1.0,
    Kind.BACKWARD_WEIGHTS: 1.0,
}

Durations = Mapping[Kind, float | Sequence[float]]


def simulate(
    schedule: Schedule,
    durations: Durations | None = None,
    transfers: float | Sequence[float] = 0.0,
) -> Timeline:
    """Simulate a schedule.

    Args:
        schedule: actions of every device.
        durations: duration of each kind of action, one for all stages or one per stage; by default
            `DURATIONS`.
        transfers: duration of a transfer between consecutive stages on two devices; one for all or
            one per pair of stages. Transfers overlap with computation.

    Raises:
        ScheduleError: if the schedule cannot be run.
    """
    if durations is None and not transfers:
        return _simulate_by_default(schedule)
    return _simulate(schedule, durations or DURATIONS, transfers)


@lru_cache(maxsize=512)
def _simulate_by_default(schedule: Schedule) -> Timeline:
    return _simulate(schedule, DURATIONS, 0.0)


def _simulate(
    schedule: Schedule, durations: Durations, transfers: float | Sequence[float]
) -> Timeline:
    validate(schedule)
    ends: dict[Action, float] = {}
    events: list[Event] = []
    free = [0.0] * schedule.devices
    for device, action in schedule.execution_order():
        needs = schedule.needs(action)
        ready = [ends[need] + _transfer(schedule, need, action, transfers) for need in needs]
        start = max([free[device], *ready])
        free[device] = ends[action] = start + _duration(action, durations)
        events.append(Event(device, action, start, free[device]))
    events.sort(key=lambda event: (event.start, event.device))
    return Timeline(tuple(events), schedule.devices, peak_stash(schedule))


def _duration(action: Action, durations: Durations) -> float:
    value = durations[action.kind]
    return value[action.stage] if isinstance(value, Sequence) else value


def _transfer(
    schedule: Schedule, need: Action, action: Action, transfers: float | Sequence[float]
) -> float:
    if schedule.mapping[need.stage] == schedule.mapping[action.stage]:
        return 0.0
    if not isinstance(transfers, Sequence):
        return transfers
    return transfers[min(need.stage, action.stage)]


def peak_stash(schedule: Schedule, sizes: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the maximum that each device stores at once for backward passes.

    Activations are held from a forward pass to the last action that reads them.

    Args:
        schedule: a schedule.
        sizes: bytes that each stage holds for a micro-batch; by default micro-batches are counted.
    """
    last = Kind.BACKWARD_WEIGHTS if schedule.splits_backward else Kind.BACKWARD
    peaks = []
    for row in schedule.actions:
        held = peak = 0
        for action in row:
            size = 1 if sizes is None else sizes[action.stage]
            held += size * (action.kind == Kind.FORWARD)
            peak = max(peak, held)
            held -= size * (action.kind == last)
        peaks.append(peak if schedule.trains else min(peak, 1))
    return tuple(peaks)
