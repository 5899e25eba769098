"""Timelines of pipelines, simulated or measured.

For a measured timeline, one thread per device waits for the device's actions in order and records
when each one ends. An action starts when its device is free, its inputs are available, and Python
has dispatched it.
"""

import statistics
import threading
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import jax
from convoy.pipeline.schedule import Action, Kind, Schedule


@dataclass(frozen=True)
class Event:
    """An action on a device, with its start and end time."""

    device: int
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Start and end of every action.

    Attributes:
        events: events in the order of their start.
        devices: number of devices.
        peak_stash: for each device, the maximum number of micro-batches whose activations it holds
            at once, over all of its stages.
        began: `time.perf_counter()` at the first event if the timeline was measured; else 0.
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
        """The fraction of time in which the devices are idle."""
        total = self.devices * self.seconds
        return 1 - sum(map(self.busy, range(self.devices))) / total if total else 0.0

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # The output of a notebook cell. `render` imports this module.
        from convoy.pipeline.render import display_data

        return display_data(self)


@dataclass(frozen=True)
class TimedAction:
    """An action of one replica, with the times of its dispatch and of its end."""

    action: Action
    dispatched: float
    ended: float


class TimelineRecorder:
    """Measures the timeline of one weight update.

    Args:
        schedule: schedule of one replica.
        simulated: simulated timeline of the schedule.
        replicas: number of replicas of the pipeline.
        serialized: whether to wait for every action, so that no two actions run at once.
    """

    def __init__(
        self, schedule: Schedule, simulated: Timeline, replicas: int, *, serialized: bool = False
    ) -> None:
        self.schedule, self.simulated, self.replicas = schedule, simulated, replicas
        self.serialized = serialized
        self._timed: list[list[TimedAction]] = [[] for _ in range(schedule.devices * replicas)]
        self._queues: list[SimpleQueue] = [SimpleQueue() for _ in self._timed]
        self._threads = [
            threading.Thread(target=self._wait_for_actions, args=(device,), daemon=True)
            for device in range(len(self._timed))
        ]
        for thread in self._threads:
            thread.start()

    def record(
        self, action: Action, replica: int, dispatched: float, done: jax.Array | None
    ) -> None:
        """Add an action that was dispatched; `done` is an array that is ready when it has ended."""
        device = replica * self.schedule.devices + self.schedule.mapping[action.stage]
        self._queues[device].put((action, dispatched, done))
        if self.serialized:
            jax.block_until_ready(done)

    def _wait_for_actions(self, device: int) -> None:
        while (entry := self._queues[device].get()) is not None:
            action, dispatched, done = entry
            jax.block_until_ready(done)
            self._timed[device].append(TimedAction(action, dispatched, time.perf_counter()))

    def timeline(self) -> Timeline:
        """Wait for all actions to end, and return the timeline; the first event begins at 0."""
        for queue, thread in zip(self._queues, self._threads, strict=True):
            queue.put(None)
            thread.join()
        events: list[Event] = []
        for replica in range(self.replicas):
            events += self._events_of(replica)
        began = min((event.start for event in events), default=0.0)
        events = [replace(e, start=e.start - began, end=e.end - began) for e in events]
        events.sort(key=lambda event: (event.start, event.device))
        peak_stash = self.simulated.peak_stash * self.replicas
        return Timeline(tuple(events), len(self._timed), peak_stash, began)

    def _events_of(self, replica: int) -> list[Event]:
        first = replica * self.schedule.devices
        rows = self._timed[first : first + self.schedule.devices]
        ends = {timed.action: timed.ended for row in rows for timed in row}
        following = {a.action: b.action for row in rows for a, b in pairwise(row)}
        order = [event.action for event in self.simulated.events]
        needs = {action: list(self.schedule.needs(action)) for action in order}
        for action in reversed(order):
            # A thread may detect an end late, but the action has ended before any action that
            # needed it.
            if action in following:
                ends[action] = min(ends[action], ends[following[action]])
            for need in needs[action]:
                ends[need] = min(ends[need], ends[action])
        events = []
        for device, row in enumerate(rows, start=first):
            free = 0.0
            for timed in row:
                end = ends[timed.action]
                ready = [ends[need] for need in needs[timed.action]]
                start = max([free, timed.dispatched, *ready])
                events.append(Event(device, timed.action, min(start, end), end))
                free = end
        return events


def stage_durations(timeline: Timeline) -> dict[Kind, list[float]]:
    """Return the median duration of each kind of action in each stage, as `simulate` takes them."""
    measured: dict[tuple[Kind, int], list[float]] = {}
    for event in timeline.events:
        key = event.action.kind, event.action.stage
        measured.setdefault(key, []).append(event.end - event.start)
    stages = 1 + max((stage for _, stage in measured), default=-1)
    return {
        kind: [statistics.median(measured.get((kind, stage), [0.0])) for stage in range(stages)]
        for kind in Kind
        if any(found == kind for found, _ in measured)
    }
