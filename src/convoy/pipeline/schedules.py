"""The schedules that have a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convoy.pipeline.schedule import Action, Kind, Schedule

F, B, I, W = Kind  # noqa: E741 - the letters that schedules are written in

Mapping = Sequence[int] | None


def generate(
    name: str, stages: int, micro_batches: int, mapping: Mapping = None, *, trains: bool = True
) -> Schedule:
    """Make a schedule by its name.

    Args:
        name: one of `NAMES`.
        stages: how many stages the model has.
        micro_batches: that go through before the weights are updated; any number.
        mapping: the device of each stage; by default one for each stage.
        trains: whether there is a backward pass.

    Raises:
        ValueError: if the name is unknown, or a number does not fit.
    """
    make = find(name)
    if stages < 1 or micro_batches < 1:
        raise ValueError(
            f"{stages} stages and {micro_batches} micro-batches make no pipeline. Pass 1 or more."
        )
    homes = check_mapping(mapping, stages)
    if not trains:
        return _by_device(
            [(m + s, 0, Action(s, F, m)) for m, s in _pairs(micro_batches, stages)], homes
        )
    return make(stages, micro_batches, homes)


def find(name: str) -> Callable[[int, int, tuple[int, ...]], Schedule]:
    """Return what makes the schedule of a name.

    Raises:
        ValueError: if the name is unknown.
    """
    make = NAMES.get(name.lower().replace("_", "-"))
    if make is None:
        raise ValueError(f"schedule={name!r} is unknown. Pass one of {', '.join(NAMES)}.")
    return make


def check_mapping(mapping: Mapping, stages: int) -> tuple[int, ...]:
    """Return the device of each stage.

    Raises:
        ValueError: if it is not one device for each stage, or a device is left out.
    """
    if mapping is None:
        return tuple(range(stages))
    if len(mapping) != stages:
        raise ValueError(
            f"device_mapping={list(mapping)} has {len(mapping)} entries, but the model has "
            f"{stages} stages. Pass one device for each."
        )
    devices = set(mapping)
    if devices != set(range(len(devices))):
        raise ValueError(
            f"device_mapping={list(mapping)} leaves out a device. Number them from 0 without a gap."
        )
    return tuple(mapping)


def sequential(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """One stage at a time: a micro-batch goes forwards and backwards before the next begins."""
    length = 2 * stages
    placed = []
    for m, s in _pairs(micro_batches, stages):
        placed.append((m * length + s, 0, Action(s, F, m)))
        placed.append((m * length + length - 1 - s, 0, Action(s, B, m)))
    return _by_device(placed, mapping)


def grouped(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """Fill and drain, with groups that overlap: a backward and a forward pass in each time step.

    A stage holds up to twice as many micro-batches as with `interleaved`.
    """
    placed = []
    for m, s in _pairs(micro_batches, stages):
        placed.append((m + s, 1, Action(s, F, m)))
        placed.append((m + 2 * stages - 1 - s, 0, Action(s, B, m)))
    return _by_device(placed, mapping)


def interleaved(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """One forward, one backward (1F1B): a backward pass as soon as it can be.

    With several stages on a device it is the looped form, where the pipeline fills sooner: turns of
    as many micro-batches as there are devices go through one stage of a device after the other.
    """
    devices = max(mapping) + 1
    if devices < stages:
        in_turn = mapping == tuple(s % devices for s in range(stages))
        even = stages % devices == 0 and micro_batches % devices == 0
        make = _looped if in_turn and even else _greedy
        return make(stages, micro_batches, mapping)
    placed = []
    for m, s in _pairs(micro_batches, stages):
        placed.append((2 * m + s, 0, Action(s, F, m)))
        placed.append((2 * m + 2 * stages - 1 - s, 0, Action(s, B, m)))
    return _by_device(placed, mapping)


def zero_bubble(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """As `interleaved`, with the backward pass in two: gradients of weights fill the waits."""
    return _greedy(stages, micro_batches, mapping, split=True)


NAMES: dict[str, Callable[[int, int, tuple[int, ...]], Schedule]] = {
    "sequential": sequential,
    "grouped": grouped,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}


def _pairs(micro_batches: int, stages: int) -> list[tuple[int, int]]:
    return [(m, s) for m in range(micro_batches) for s in range(stages)]


def _by_device(placed: list[tuple[int, int, Action]], mapping: tuple[int, ...]) -> Schedule:
    """Sort actions by time step, and by their order in it; the later stage first if both agree."""
    rows: list[list[Any]] = [[] for _ in range(max(mapping) + 1)]
    for step, rank, action in placed:
        rows[mapping[action.stage]].append((step, rank, -action.stage, action))
    ordered = tuple(tuple(entry[-1] for entry in sorted(row, key=_key)) for row in rows)
    return Schedule(ordered, mapping, 1 + max(action.micro_batch for *_, action in placed))


def _key(entry: tuple[int, int, int, Action]) -> tuple[int, int, int]:
    return entry[:3]


def _looped(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """Fill the pipeline, then one forward and one backward pass in turn, then drain it."""
    devices = max(mapping) + 1
    rounds = stages // devices
    rows = []
    for device in range(devices):
        forward, backward = [], []
        for first in range(0, micro_batches, devices):
            turn = range(first, first + devices)
            for lap in range(rounds):
                forward += [Action(lap * devices + device, F, m) for m in turn]
                last = (rounds - 1 - lap) * devices + device
                backward += [Action(last, B, m) for m in turn]
        ahead = min(len(forward), 2 * (devices - 1 - device) + (rounds - 1) * devices)
        row = forward[:ahead]
        for f, b in zip(forward[ahead:], backward, strict=False):
            row += [f, b]
        rows.append(tuple(row + backward[len(forward) - ahead :]))
    return Schedule(tuple(rows), mapping, micro_batches)


def _greedy(
    stages: int, micro_batches: int, mapping: tuple[int, ...], *, split: bool = False
) -> Schedule:
    """Let every device take, whenever it is free, the best of what it could do.

    Backward passes come first, as they free memory and others wait for them; then forward passes,
    in turns of as many micro-batches as there are devices, which go through one stage of a device
    after the other; gradients of weights when there is nothing else. A device holds no more
    micro-batches than it takes to fill the pipeline.
    """
    devices = max(mapping) + 1
    length = {F: 1, B: 2, I: 1, W: 1}
    backward = I if split else B
    kinds = (F, backward, W) if split else (F, backward)
    waiting: list[set[Action]] = [set() for _ in range(devices)]
    for m, s in _pairs(micro_batches, stages):
        waiting[mapping[s]] |= {Action(s, kind, m) for kind in kinds}
    rows: list[list[Action]] = [[] for _ in range(devices)]
    ends: dict[Action, int] = {}
    free = [0] * devices
    held = [0] * stages
    time = 0
    own = [[s for s in range(stages) if mapping[s] == device] for device in range(devices)]
    # With one stage each, as 1F1B; else enough for the first micro-batch to come round once more.
    looped = len(own[0]) > 1
    most = [
        (len(stages_here) - 1) * devices + (2 if looped else 1) * (devices - 1 - device) + 1
        for device, stages_here in enumerate(own)
    ]

    def rank(action: Action) -> tuple[int, ...]:
        s, m = action.stage, action.micro_batch
        if action.kind == backward:
            return 0, m, -s
        if action.kind == W:
            return 2, m, -s
        turn, place = divmod(m, devices)
        return 1, turn, s, place

    def possible(action: Action) -> bool:
        device = mapping[action.stage]
        if action.kind == F and sum(held[s] for s in own[device]) >= most[device]:
            return False
        needs = action.needs(stages, splits_backward=split)
        return all(ends.get(need, time + 1) <= time for need in needs)

    while any(waiting):
        for device in range(devices):
            if free[device] > time:
                continue
            ready = [action for action in waiting[device] if possible(action)]
            if not ready:
                continue
            action = min(ready, key=rank)
            waiting[device].remove(action)
            rows[device].append(action)
            ends[action] = free[device] = time + length[action.kind]
            held[action.stage] += action.kind == F
            held[action.stage] -= action.kind == (W if split else B)
        time += 1
    return Schedule(tuple(map(tuple, rows)), mapping, micro_batches)
