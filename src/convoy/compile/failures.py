"""Errors of compiling for a target, and suggestions for runs that do not fit in memory."""

import re
from math import ceil
from typing import NamedTuple

from convoy.compile.analysis import ObservedRun

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Two messages of XLA for TPUs: "Used 20.25G of 15.75G hbm.", and "the total memory required for HLO
# temporaries (26.67G) exceeds available HBM (15.75G)", which leaves out arguments and results.
_USED = re.compile(r"[Uu]sed ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
_TEMPORARIES = re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")


class TargetError(ValueError):
    """A target that cannot be compiled for: unknown, or without its compiler."""


class Shortage(NamedTuple):
    """Bytes that a program needs on a device, and bytes that the device has."""

    needed: int
    available: int


class TooLarge(Exception):  # noqa: N818 - not an error of the caller
    """A program that the compiler rejects because it does not fit into a device's memory.

    Args:
        program: the name of the program.
        shortage: the memory that it needs, and that a device has.
        state: bytes of the arguments that are donated to it.
        run: the run that needs it.
    """

    def __init__(self, program: str, shortage: Shortage, state: int, run: ObservedRun) -> None:
        super().__init__(program)
        self.program, self.shortage, self.state, self.run = program, shortage, state, run


def find_shortage(error: Exception, arguments: int) -> Shortage | None:
    """Return the required and available memory from a compiler's error, or `None` for other errors.

    Args:
        error: the compiler's error.
        arguments: bytes of the program's arguments on a device.
    """
    for pattern, added in ((_USED, 0), (_TEMPORARIES, arguments)):
        if found := pattern.search(str(error)):
            return Shortage(_bytes(found[1], found[2]) + added, _bytes(found[3], found[4]))
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


# Memory that stays free, because temporary memory does not shrink exactly with the batch.
MARGIN = 0.9


def advise(needed: int, available: int, state: int, run: ObservedRun) -> list[str]:
    """Return changes that should make a run fit, the smallest change first.

    Args:
        needed: bytes that a device would need.
        available: bytes that it has.
        state: the part of `needed` for weights, optimizer state and statistics.
        run: the run.
    """
    config, is_pipeline = run.config, run.config.pipeline is not None
    found = []
    local = run.batch // config.replicas if run.batch else 0
    room = available * MARGIN - state
    if local > 1 and room > 0:
        fitting = int(local * room / max(1, needed - state))
        if fitting >= 1:
            smaller = 1 << (min(fitting, local - 1).bit_length() - 1)
            steps = config.gradient_accumulation * ceil(local / smaller)
            found.append(
                f"a micro-batch of {smaller} instead of {local} "
                f"(--micro-batch-size {smaller}, batch_size={smaller}); gradient accumulation over "
                f"{steps} micro-batches keeps the global batch"
            )
    if run.name == "fit" and room > 0 and config.activation_checkpointing is None:
        how = (
            "set_pipelining_options(activation_checkpointing=True)"
            if is_pipeline
            else 'Strategy(activation_checkpointing="auto")'
        )
        found.append(f"activation checkpointing: {how}")
    if (
        run.name == "fit"
        and config.replicas > 1
        and not is_pipeline
        and config.shard != "weights"
        and needed - state + state / config.replicas <= available * MARGIN
    ):
        found.append('weights sharded over replicas: Strategy(shard="weights")')
    stages = ceil(needed / (available * MARGIN))
    if run.name == "fit":
        found.append(
            f"{'more' if is_pipeline else f'at least {stages}'} pipeline stages "
            f"(--pipeline-splits auto {stages}, convoy.split(model, {stages}))"
        )
    return found
