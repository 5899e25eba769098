"""Errors of compiling for a target: an unknown target, and a program that is too large."""

import re
from typing import NamedTuple

from convoy.compile.advice import Demand

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
        demand: the program and the memory that it needs.
    """

    def __init__(self, demand: Demand) -> None:
        super().__init__(demand.name)
        self.demand = demand


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
