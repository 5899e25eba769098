"""Validation of schedules: every action exists exactly once, in an order that can be run."""

from functools import lru_cache

from convoy.pipeline.schedule import Action, Kind, Schedule


class ScheduleError(ValueError):
    """A schedule that cannot be run, or that would compute a wrong result."""

    def __init__(self, schedule: Schedule, problem: str, at: tuple[int, int] | None = None) -> None:
        where = f" on device {at[0]}" if at else ""
        super().__init__(f"{problem}{where}.\n{_render(schedule, at)}")
        self.at = at
        """Device and position of the invalid action, if it is a single one."""


@lru_cache(maxsize=512)
def validate(schedule: Schedule) -> Schedule:
    """Return the schedule if it can be run.

    Raises:
        ScheduleError: if an action is missing or duplicated, is on another device than the rest of
            its stage, or comes before an action that it needs; or if devices deadlock.
    """
    _check_devices(schedule)
    _check_completeness(schedule)
    _check_order(schedule)
    return schedule


def _check_devices(schedule: Schedule) -> None:
    seen: dict[Action, tuple[int, int]] = {}
    cells = (
        ((device, position), action)
        for device, row in enumerate(schedule.actions)
        for position, action in enumerate(row)
    )
    for at, action in cells:
        if not 0 <= action.stage < schedule.stages:
            raise ScheduleError(schedule, f"There is no stage {action.stage} for {action}", at)
        if not 0 <= action.micro_batch < schedule.micro_batches:
            raise ScheduleError(
                schedule, f"There is no micro-batch {action.micro_batch} for {action}", at
            )
        if schedule.mapping[action.stage] != at[0]:
            home = schedule.mapping[action.stage]
            raise ScheduleError(schedule, f"{action} belongs on device {home} but is", at)
        if action in seen:
            raise ScheduleError(schedule, f"{action} is duplicated", at)
        seen[action] = at


def _check_completeness(schedule: Schedule) -> None:
    present = set(schedule)
    trains = schedule.trains
    for stage in range(schedule.stages):
        for micro_batch in range(schedule.micro_batches):
            forward, backward, of_input, of_weights = (
                Action(stage, kind, micro_batch) in present for kind in Kind
            )
            name = f"micro-batch {micro_batch} of stage {stage}"
            if not forward:
                raise ScheduleError(schedule, f"The forward pass of {name} is missing")
            if backward and (of_input or of_weights):
                raise ScheduleError(schedule, f"The backward pass of {name} exists whole and split")
            if of_input != of_weights:
                half = "weights" if of_input else "input"
                raise ScheduleError(schedule, f"The gradient of the {half} of {name} is missing")
            if trains and not (backward or of_input):
                raise ScheduleError(schedule, f"The backward pass of {name} is missing")
            if backward and schedule.splits_backward:
                raise ScheduleError(
                    schedule, f"The backward pass of {name} is whole, those of others are split"
                )


def _check_order(schedule: Schedule) -> None:
    """Raise an error for the first device that waits for itself, else for a deadlock."""
    done = {action for _, action in schedule.execution_order()}
    waiting = []
    for device, row in enumerate(schedule.actions):
        position = sum(action in done for action in row)
        if position == len(row):
            continue
        action, at = row[position], (device, position)
        missing = next(need for need in schedule.needs(action) if need not in done)
        if schedule.mapping[missing.stage] == device:
            raise ScheduleError(schedule, f"{action} comes before {missing}, which it needs,", at)
        waiting.append((f"Devices wait for each other: {action} for {missing}", at))
    if waiting:
        raise ScheduleError(schedule, *waiting[0])


def _render(schedule: Schedule, at: tuple[int, int] | None) -> str:
    lines = []
    for device, row in enumerate(schedule.actions):
        cells = [
            f">>{action}<<" if at == (device, position) else str(action)
            for position, action in enumerate(row)
        ]
        lines.append(f"  device {device}: {' '.join(cells)}")
    return "\n".join(lines)
