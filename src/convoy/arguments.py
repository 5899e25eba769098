"""Checks of numbers that users pass as arguments."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, meaning: str, minimum: int = 1) -> int:
    """Return an argument as a whole number.

    Args:
        name: name of the argument.
        value: its value; integers of NumPy are accepted.
        meaning: what it should be, such as "a number of bytes".
        minimum: smallest valid value.

    Raises:
        ValueError: if it is anything else.
    """
    try:
        number = minimum - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise ValueError(f"{name}={value!r} is not {meaning}. Pass {minimum} or more.")
    return number
