"""Generators of the named pipeline schedules, and the table of their names and aliases."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from convoy.pipeline.schedule import Action, Kind, Schedule
from convoy.units import format_count

F, B, I, W = Kind  # noqa: E741 - the letters in which schedules are written

Generator = Callable[[int, int, tuple[int, ...]], Schedule]
"""Takes the number of stages, the number of micro-batches and the device of each stage."""


def generate(
    name: str,
    stages: int,
    micro_batches: int,
    mapping: Sequence[int] | None = None,
    *,
    trains: bool = True,
) -> Schedule:
    """Generate a schedule by its name.

    Args:
        name: one of `NAMES` or `ALIASES`, in any case.
        stages: number of stages of the model.
        micro_batches: number of micro-batches per weight update; any number from 1.
        mapping: device of each stage; by default each stage has its own.
        trains: whether the schedule has a backward pass.

    Raises:
        ValueError: if the name is unknown, or a number or the mapping is invalid.
    """
    name = canonical_name(name)
    if stages < 1 or micro_batches < 1:
        raise ValueError(
            f"{stages} stages and {micro_batches} micro-batches make no pipeline. Pass 1 or more."
        )
    return _generate(name, stages, micro_batches, check_mapping(mapping, stages), trains)


@lru_cache(maxsize=512)
def _generate(
    name: str, stages: int, micro_batches: int, mapping: tuple[int, ...], trains: bool
) -> Schedule:
    if trains:
        return GENERATORS[name](stages, micro_batches, mapping)
    return _by_clock(mapping, micro_batches, {F: lambda m, s: m + s})


def canonical_name(name: str) -> str:
    """Return the entry of `NAMES` for a name or an alias.

    Raises:
        ValueError: if the name is unknown.
    """
    written = name.lower().replace("_", "-")
    found = ALIASES.get(written, written)
    if found not in GENERATORS:
        raise ValueError(f"schedule={name!r} is unknown. Pass one of {', '.join(NAMES)}.")
    return found


def check_mapping(mapping: Sequence[int] | None, stages: int, option: str = "") -> tuple[int, ...]:
    """Return the device of each stage.

    Args:
        mapping: device of each stage; by default, each stage has its own device.
        stages: number of stages.
        option: the mapping in error messages, as the user wrote it.

    Raises:
        ValueError: if the mapping does not have one device per stage, or skips a device.
    """
    if mapping is None:
        return tuple(range(stages))
    option = option or f"device_mapping={list(mapping)}"
    if len(mapping) != stages:
        raise ValueError(
            f"{option} has {len(mapping)} entries, but the model has "
            f"{format_count(stages, 'stage')}. Pass one device for each."
        )
    devices = set(mapping)
    if devices != set(range(len(devices))):
        raise ValueError(f"{option} leaves out a device. Number the devices from 0 without a gap.")
    return tuple(mapping)


# A generator gives every action a clock tick; the actions of a device, sorted by tick, are its row.
# F2 is the forward pass of micro-batch 2, B2 its backward pass.


def sequential(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """Run one stage at a time: one micro-batch forward and backward before the next begins."""
    #  tick       0   1   2   3   4   5   6   7
    #  stage 0    F0  .   .   B0  F1  .   .   B1
    #  stage 1    .   F0  B0  .   .   F1  B1  .
    ticks = 2 * stages
    clock = {F: lambda m, s: m * ticks + s, B: lambda m, s: (m + 1) * ticks - 1 - s}
    return _by_clock(mapping, micro_batches, clock)


def gpipe(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """Fill and drain as in GPipe (Huang et al., 2019), with a drain that overlaps the next fill.

    GPipe itself runs all forward passes of a weight update before its first backward pass, so a
    stage holds every micro-batch. Here, as in Graphcore's Grouped schedule, a stage runs a backward
    and a forward pass in each tick once the pipeline is full, so stage `s` of `n` holds at most
    `2 (n - s) - 1` micro-batches, about twice as many as with `one_forward_one_backward`.
    """
    #  tick       0   1   2   3      4      5
    #  stage 0    F0  F1  F2  F3     F4     B0 F5
    #  stage 1    .   F0  F1  F2     B0 F3  B1 F4
    #  stage 2    .   .   F0  B0 F1  B1 F2  B2 F3
    clock = {F: lambda m, s: m + s, B: lambda m, s: m + 2 * stages - 1 - s}
    return _by_clock(mapping, micro_batches, clock)


def one_forward_one_backward(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """Run one forward, one backward pass in turn (1F1B): each backward pass as early as possible.

    With several stages per device it is the interleaved (looped) form of Megatron-LM, in which the
    pipeline fills sooner: groups of as many micro-batches as there are devices go through one stage
    of a device after the other.
    """
    #  tick       0   1   2   3   4   5   6   7   8
    #  stage 0    F0  .   F1  .   F2  B0  F3  B1  F4
    #  stage 1    .   F0  .   F1  B0  F2  B1  F3  B2
    #  stage 2    .   .   F0  B0  F1  B1  F2  B2  F3
    devices = max(mapping) + 1
    if devices < stages:
        round_robin = mapping == tuple(s % devices for s in range(stages))
        even = stages % devices == 0 and micro_batches % devices == 0
        generator = _looped if round_robin and even else _greedy
        return generator(stages, micro_batches, mapping)
    clock = {F: lambda m, s: 2 * m + s, B: lambda m, s: 2 * m + 2 * stages - 1 - s}
    return _by_clock(mapping, micro_batches, clock)


def zero_bubble(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """Run 1F1B with the backward pass in two halves: weight gradients fill the bubbles.

    This is ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024).
    """
    return _greedy(stages, micro_batches, mapping, split=True)


GENERATORS: dict[str, Generator] = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "zero-bubble": zero_bubble,
}
NAMES = tuple(GENERATORS)
ALIASES = {"grouped": "gpipe", "interleaved": "1f1b"}
"""Graphcore's names of schedules, mapped to the names here."""
DEFAULT = "1f1b"


def _by_clock(
    mapping: tuple[int, ...], micro_batches: int, clock: Mapping[Kind, Callable[[int, int], int]]
) -> Schedule:
    """Sort actions by their tick; within a tick backward passes first, and later stages first.

    Args:
        mapping: device of each stage.
        micro_batches: number of micro-batches.
        clock: for each kind of action, a function from micro-batch and stage to the tick.
    """
    ticks = {
        Action(s, kind, m): tick(m, s)
        for kind, tick in clock.items()
        for m in range(micro_batches)
        for s in range(len(mapping))
    }
    rows: list[list[Action]] = [[] for _ in range(max(mapping) + 1)]
    for action in sorted(ticks, key=lambda a: (ticks[a], a.kind == F, -a.stage)):
        rows[mapping[action.stage]].append(action)
    return Schedule(tuple(map(tuple, rows)), mapping, micro_batches)


def _looped(stages: int, micro_batches: int, mapping: tuple[int, ...]) -> Schedule:
    """Fill the pipeline, then alternate forward and backward passes, then drain it."""
    devices = max(mapping) + 1
    loops = stages // devices
    rows = []
    for device in range(devices):
        forward, backward = [], []
        for first in range(0, micro_batches, devices):
            group = range(first, first + devices)
            for loop in range(loops):
                forward += [Action(loop * devices + device, F, m) for m in group]
                last = (loops - 1 - loop) * devices + device
                backward += [Action(last, B, m) for m in group]
        warmup = min(len(forward), 2 * (devices - 1 - device) + (loops - 1) * devices)
        row = forward[:warmup]
        for f, b in zip(forward[warmup:], backward, strict=False):
            row += [f, b]
        rows.append(tuple(row + backward[len(forward) - warmup :]))
    return Schedule(tuple(rows), mapping, micro_batches)


def _greedy(
    stages: int, micro_batches: int, mapping: tuple[int, ...], *, split: bool = False
) -> Schedule:
    """Simulate the devices; each takes, whenever it is free, the best action that is ready.

    Backward passes come first, as they free memory and other stages wait for them. Then come
    forward passes, in groups of as many micro-batches as there are devices. Weight gradients run
    when nothing else is ready. A device holds no more micro-batches than it takes to fill the
    pipeline.
    """
    devices = max(mapping) + 1
    length = {F: 1, B: 2, I: 1, W: 1}
    backward = I if split else B
    kinds = (F, backward, W) if split else (F, backward)
    waiting: list[set[Action]] = [set() for _ in range(devices)]
    for s in range(stages):
        waiting[mapping[s]] |= {Action(s, kind, m) for kind in kinds for m in range(micro_batches)}
    rows: list[list[Action]] = [[] for _ in range(devices)]
    ends: dict[Action, int] = {}
    free = [0] * devices
    held = [0] * stages
    time = 0
    stages_of = [[s for s in range(stages) if mapping[s] == device] for device in range(devices)]
    # With one stage per device, the same limit as in 1F1B; with more stages, enough for the first
    # micro-batch to reach the device again.
    looped = len(stages_of[0]) > 1
    capacity = [
        (len(own) - 1) * devices + (2 if looped else 1) * (devices - 1 - device) + 1
        for device, own in enumerate(stages_of)
    ]

    def rank(action: Action) -> tuple[int, ...]:
        s, m = action.stage, action.micro_batch
        if action.kind == backward:
            return 0, m, -s
        if action.kind == W:
            return 2, m, -s
        group, index = divmod(m, devices)
        return 1, group, s, index

    def is_ready(action: Action) -> bool:
        device = mapping[action.stage]
        if action.kind == F and sum(held[s] for s in stages_of[device]) >= capacity[device]:
            return False
        needs = action.needs(stages, splits_backward=split)
        return all(ends.get(need, time + 1) <= time for need in needs)

    while any(waiting):
        for device in range(devices):
            if free[device] > time:
                continue
            ready = [action for action in waiting[device] if is_ready(action)]
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
