"""Calls of user functions, which receive only the arguments that they name."""

import inspect
from collections.abc import Callable, Mapping, Sequence

from convoy.types import PyTree


def argument_names(function: Callable[..., PyTree]) -> list[str] | None:
    """Return the names of a function's arguments; `None` if it accepts any keyword argument."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def call_with_named(function: Callable[..., PyTree], available: Mapping[str, PyTree]) -> PyTree:
    """Call a function with those of the available arguments that it names."""
    names = argument_names(function)
    return function(**{n: value for n, value in available.items() if names is None or n in names})


def check_arguments(function: Callable[..., PyTree], what: str, known: Sequence[str]) -> None:
    """Raise `ValueError` if a function requires an argument that is not available."""
    for parameter in inspect.signature(function).parameters.values():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and parameter.name not in known:
            raise ValueError(
                f"The {what} has an argument {parameter.name!r}, but receives only "
                f"{', '.join(known)}. Rename the argument, or give it a default."
            )


def check_returned(
    function: str, value: object, kind: type, what: str, error: type[Exception] = TypeError
) -> None:
    """Raise an error if a function returned a value of another type."""
    if not isinstance(value, kind):
        raise error(f"{function} returned {type(value).__name__}, not {what}. Return one.")


def as_list(values: PyTree) -> list[PyTree]:
    """Return `None`, one value, or a list or tuple of values as a list."""
    if values is None:
        return []
    return list(values) if isinstance(values, (list, tuple)) else [values]


def as_arguments(values: PyTree) -> tuple[list[PyTree], dict[str, PyTree]]:
    """Return values as the positional and keyword arguments of a call.

    A list or tuple becomes several positional arguments, a dict with string keys becomes keyword
    arguments.
    """
    if isinstance(values, Mapping) and all(isinstance(key, str) for key in values):
        return [], dict(values)
    return as_list(values), {}
