"""Checks of arguments: numbers that users pass, and packages that these need."""

import importlib.util
import operator
from typing import Any


def whole_number(name: str, value: Any, meaning: str, minimum: int = 1) -> int:
    """Return an argument as a whole number.

    Args:
        name: name of the argument.
        value: its value; integers of NumPy are accepted.
        meaning: description of a valid value, such as "a number of bytes".
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


def require_package(package: str, what: str, distribution: str = "", extra: str = "") -> None:
    """Raise `ValueError` if a package is not installed.

    Args:
        package: name under which it is imported.
        what: subject of the message: the feature that needs the package.
        distribution: name under which it is installed, if that is another one.
        extra: the extra of Convoy that contains it, if one does.
    """
    if importlib.util.find_spec(package) is None:
        name = distribution or package
        install = f"'keras-convoy[{extra}]'" if extra else name
        raise ValueError(f"{what} needs the package {name}. Install it with: pip install {install}")
