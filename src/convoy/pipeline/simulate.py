"""How long a schedule takes, and what every device holds meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from convoy.pipeline.schedule import Action, Kind, Schedule
from convoy.pipeline.validate import validate

# A backward pass computes two products for each one of the forward pass.
DURATIONS = {
    Kind.FORWARD: 1.0,
    Kind.BACKWARD: 2.0,
    Kind.BACKWARD_INPUT: 1.0,
    Kind.BACKWARD_WEIGHTS: 1.0,
}

Durations = Mapping[Kind, float | Sequence[float]]


@dataclass(frozen=True)
class Event:
    """An action, where and when."""

    device: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What happened, or would happen.

    Attributes:
        events: in the order of their start.
        devices: how many there are.
        peak_stash: of each device, the most micro-batches whose activations it holds at once, over
            all of its stages.
        began: when the first event was, in seconds of `time.perf_counter`; 0 on paper.
    """

    events: tuple[Event, ...]
    devices: int
    peak_stash: tuple[int, ...]
    began: float = 0.0

    @property
    def seconds(self) -> float:
        return max((event.end for event in self.events), default=0.0)

    def busy(self, device: int) -> float:
        return sum(event.end - event.start for event in self.events if event.device == device)

    @property
    def bubble(self) -> float:
        """The part of the devices' time in which they wait."""
        whole = self.devices * self.seconds
        return 1 - sum(map(self.busy, range(self.devices))) / whole if whole else 0.0


def simulate(
    schedule: Schedule,
    durations: Durations = DURATIONS,
    transfers: float | Sequence[float] = 0.0,
) -> Timeline:
    """Carry a schedule out on paper.

    Args:
        schedule: what every device does.
        durations: the time of each kind of action, for all stages or a number for each.
        transfers: the time from a stage to the next, if they are on two devices; one number or one
            for each border. The devices go on meanwhile.
    """
    validate(schedule)
    ends: dict[Action, float] = {}
    events: list[Event] = []
    next_position = [0] * schedule.devices
    free = [0.0] * schedule.devices
    left = sum(map(len, schedule.actions))
    while left:
        for device, row in enumerate(schedule.actions):
            while next_position[device] < len(row):
                action = row[next_position[device]]
                needs = list(schedule.needs(action))
                if any(need not in ends for need in needs):
                    break
                ready = [ends[n] + _transfer(schedule, n, action, transfers) for n in needs]
                start = max([free[device], *ready])
                free[device] = ends[action] = start + _duration(action, durations)
                events.append(Event(device, action, start, free[device]))
                next_position[device] += 1
                left -= 1
    events.sort(key=lambda event: (event.start, event.device))
    return Timeline(tuple(events), schedule.devices, _peak_stash(schedule))


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


def _peak_stash(schedule: Schedule) -> tuple[int, ...]:
    """Count what a device holds: from a forward pass to the last action that reads it."""
    last = Kind.BACKWARD_WEIGHTS if schedule.splits_backward else Kind.BACKWARD
    peaks = []
    for row in schedule.actions:
        held = peak = 0
        for action in row:
            held += action.kind == Kind.FORWARD
            peak = max(peak, held)
            held -= action.kind == last
        peaks.append(peak if schedule.trains else min(peak, 1))
    return tuple(peaks)
