"""A pipeline schedule as data: the actions of every device, in order.

A schedule has no times. A device runs its actions one after the other, and waits if an action needs
a result of another device that has not arrived yet.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any


class Kind(StrEnum):
    """The computation of an action: a forward pass, a backward pass, or half of a backward pass."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHTS = "W"


@dataclass(frozen=True)
class Action:
    """One computation; its text is, for example, `2F0`: stage 2, forward, micro-batch 0."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        found = re.fullmatch(r"\s*(\d+)([FBIW])(\d+)\s*", text)
        if not found:
            raise ValueError(
                f"{text!r} is not an action. Write a stage, one of F, B, I and W, and a "
                "micro-batch, for example 2F0."
            )
        stage, kind, micro_batch = found.groups()
        return cls(int(stage), Kind(kind), int(micro_batch))

    def needs(self, stages: int, *, splits_backward: bool) -> Iterator[Action]:
        """Yield the actions whose results this one reads."""
        stage, micro_batch = self.stage, self.micro_batch
        if self.kind == Kind.FORWARD:
            if stage > 0:
                yield Action(stage - 1, Kind.FORWARD, micro_batch)
        elif self.kind == Kind.BACKWARD_WEIGHTS:
            yield Action(stage, Kind.BACKWARD_INPUT, micro_batch)
        else:
            yield Action(stage, Kind.FORWARD, micro_batch)
            if stage < stages - 1:
                before = Kind.BACKWARD_INPUT if splits_backward else Kind.BACKWARD
                yield Action(stage + 1, before, micro_batch)


@dataclass(frozen=True)
class Schedule:
    """The actions of every device.

    Attributes:
        actions: actions of each device, in order.
        mapping: device of each stage.
        micro_batches: number of micro-batches per weight update.
    """

    actions: tuple[tuple[Action, ...], ...]
    mapping: tuple[int, ...]
    micro_batches: int

    @property
    def stages(self) -> int:
        return len(self.mapping)

    @property
    def devices(self) -> int:
        return len(self.actions)

    @cached_property
    def splits_backward(self) -> bool:
        """Whether input gradients and weight gradients are computed by separate actions."""
        return any(action.kind == Kind.BACKWARD_INPUT for action in self)

    @cached_property
    def trains(self) -> bool:
        return any(action.kind != Kind.FORWARD for action in self)

    def __iter__(self) -> Iterator[Action]:
        for row in self.actions:
            yield from row

    def needs(self, action: Action) -> Iterator[Action]:
        return action.needs(self.stages, splits_backward=self.splits_backward)

    def execution_order(self) -> Iterator[tuple[int, Action]]:
        """Yield devices and actions in an order in which every action follows its dependencies.

        The order ends early if the remaining actions wait for each other.
        """
        done: set[Action] = set()
        position = [0] * self.devices
        progress = True
        while progress:
            progress = False
            for device, row in enumerate(self.actions):
                while position[device] < len(row):
                    action = row[position[device]]
                    if any(need not in done for need in self.needs(action)):
                        break
                    yield device, action
                    done.add(action)
                    position[device] += 1
                    progress = True

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # The output of a notebook cell: the simulated timeline, or the actions if they cannot be
        # run. These modules import this one.
        from convoy.pipeline.render import display_data
        from convoy.pipeline.simulation import simulate
        from convoy.pipeline.validation import ScheduleError

        try:
            return display_data(simulate(self))
        except ScheduleError as error:
            return {"text/plain": f"{self.to_csv()}{error}"}

    def to_csv(self) -> str:
        """Return one line of text per device."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(str, row) for row in self.actions)
        return text.getvalue()

    @classmethod
    def from_csv(cls, text: str) -> Schedule:
        """Parse one line per device, as written by `to_csv` or by hand; empty cells are ignored.

        The line of an action determines the device of its stage; `validate` detects a stage on two
        lines.
        """
        actions = tuple(
            tuple(Action.parse(cell) for cell in row if cell.strip())
            for row in csv.reader(io.StringIO(text))
        )
        found = {action.stage: device for device, row in enumerate(actions) for action in row}
        if not found:
            raise ValueError("The schedule has no action. Write a line of them for each device.")
        stages = max(found) + 1
        missing = [stage for stage in range(stages) if stage not in found]
        if missing:
            raise ValueError(
                f"The schedule goes up to stage {stages - 1}, but has no action of stage "
                f"{missing[0]}. Number the stages from 0 without a gap."
            )
        micro_batches = max(action.micro_batch for row in actions for action in row) + 1
        return cls(actions, tuple(found[stage] for stage in range(stages)), micro_batches)
