"""Errors of compiling for a target, and the memory that a compiler reports as missing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from convoy.compile.observed_run import ObservedRun

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
    """Return the memory that a program lacks, or `None` if the compiler's message is another one.

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
