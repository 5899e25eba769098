"""Checks of arguments that several functions and classes share."""

from collections.abc import Iterable, Sequence

INSIDE_OF_UPDATE = ", so a device call would end inside of a weight update"
"""A reason that `multiple` can show."""

Kinds = type | tuple[type, ...]


def in_range(name: str, value: int | None, low: int, high: int | None = None) -> None:
    """Raise `ValueError` if a number was passed that is out of range."""
    if value is not None and (value < low or (high is not None and value > high)):
        expected = f"{low} or more" if high is None else f"{low} to {high}"
        raise ValueError(f"{name}={value} is out of range. Pass {expected}.")


def multiple(
    name: str, value: int, of: str, unit: int, reason: str = "", error: type[Exception] = ValueError
) -> None:
    """Raise an error if a number is not a multiple of another."""
    if value % unit:
        nearest = -(-value // unit) * unit
        raise error(f"{name}={value} is not a multiple of {of}={unit}{reason}. Pass {nearest}.")


def instance(name: str, value: object, kinds: Kinds, what: str) -> None:
    """Raise `TypeError` if a value was passed that is of another type."""
    if value is not None and not isinstance(value, kinds):
        raise TypeError(f"{name} is of type {type(value).__name__}. Pass {what}.")


def one_per_stage(name: str, entries: Sequence[object], stages: int) -> None:
    """Raise `ValueError` if a list does not have one entry for each stage."""
    if len(entries) != stages:
        raise ValueError(f"{name} has {len(entries)} entries. Pass {stages}, one for each stage.")


def equal_shapes(found: object, first: object) -> None:
    """Raise `ValueError` if an element of a dataset has other shapes than the first."""
    if found != first:
        raise ValueError(
            f"The elements of the dataset differ in shape: {found} after {first}. Pass elements of "
            "the same shape, without an incomplete last batch."
        )


def known_names(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ValueError` if a keyword argument is unknown."""
    for name in names:
        if name not in known:
            raise ValueError(f"{where}() does not take {name!r}. It takes {', '.join(known)}.")
