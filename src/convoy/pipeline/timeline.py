"""When the devices of a pipeline did what.

A thread for each device waits for one action after the other and notes when it has ended. An action
began when its device was free, what it needs was there, and Python had started it.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import jax
from convoy.pipeline.schedule import Action, Kind, Schedule
from convoy.pipeline.simulate import Event, Timeline, simulate


@dataclass(frozen=True)
class Note:
    """An action of one replica: when Python started it, and when it ended."""

    action: Action
    started: float
    ended: float


class Recorder:
    """Records one weight update.

    Args:
        schedule: what every device of a replica does.
        replicas: of the pipeline.
        alone: whether Python waits for every action, so that each has the machine to itself.
    """

    def __init__(self, schedule: Schedule, replicas: int, *, alone: bool = False) -> None:
        self.schedule, self.replicas, self.alone = schedule, replicas, alone
        self._notes: list[list[Note]] = [[] for _ in range(schedule.devices * replicas)]
        self._queues: list[SimpleQueue] = [SimpleQueue() for _ in self._notes]
        self._threads = [
            threading.Thread(target=self._watch, args=(device,), daemon=True)
            for device in range(len(self._notes))
        ]
        for thread in self._threads:
            thread.start()

    def started(self, action: Action, replica: int, started: float, done: Any) -> None:
        """Note that Python has started an action; `done` is there when it has ended."""
        place = self.schedule.mapping[action.stage]
        self._queues[replica * self.schedule.devices + place].put((action, started, done))
        if self.alone:
            jax.block_until_ready(done)

    def _watch(self, device: int) -> None:
        while (entry := self._queues[device].get()) is not None:
            action, started, done = entry
            jax.block_until_ready(done)
            self._notes[device].append(Note(action, started, time.perf_counter()))

    def timeline(self) -> Timeline:
        """Wait for the end of all actions, and return when each was; the first begins at 0."""
        for queue, thread in zip(self._queues, self._threads, strict=True):
            queue.put(None)
            thread.join()
        planned = simulate(self.schedule)
        events: list[Event] = []
        for replica in range(self.replicas):
            first = replica * self.schedule.devices
            rows = self._notes[first : first + self.schedule.devices]
            events += self._events(first, rows, [event.action for event in planned.events])
        zero = min((event.start for event in events), default=0.0)
        shifted = [Event(e.device, e.action, e.start - zero, e.end - zero) for e in events]
        shifted.sort(key=lambda event: (event.start, event.device))
        stash = planned.peak_stash * self.replicas
        return Timeline(tuple(shifted), len(self._notes), stash, zero)

    def _events(self, first: int, rows: list[list[Note]], order: list[Action]) -> list[Event]:
        """Find the beginning of every action of a replica, whose first device has a number."""
        notes = {note.action: note for row in rows for note in row}
        ends = {action: note.ended for action, note in notes.items()}
        follows = {a.action: b.action for row in rows for a, b in pairwise(row)}
        needs = {action: list(self.schedule.needs(action)) for action in order}
        for action in reversed(order):
            # A thread may be late to see an end, but not later than what needed it ended.
            following = [ends[follows[action]]] if action in follows else []
            ends[action] = min([ends[action], *following])
            for need in needs[action]:
                ends[need] = min(ends[need], ends[action])
        events = []
        for device, row in enumerate(rows, start=first):
            free = 0.0
            for note in row:
                end = ends[note.action]
                start = max([free, note.started, *(ends[need] for need in needs[note.action])])
                events.append(Event(device, note.action, min(start, end), end))
                free = end
        return events


def durations(timeline: Timeline) -> dict[Kind, list[float]]:
    """Return the median time of each kind of action in each stage, for `simulate`."""
    taken: dict[tuple[Kind, int], list[float]] = {}
    for event in timeline.events:
        key = event.action.kind, event.action.stage
        taken.setdefault(key, []).append(event.end - event.start)
    stages = 1 + max((stage for _, stage in taken), default=-1)
    return {
        kind: [statistics.median(taken.get((kind, stage), [0.0])) for stage in range(stages)]
        for kind in Kind
        if any(found == kind for found, _ in taken)
    }
