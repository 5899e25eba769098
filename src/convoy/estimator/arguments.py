"""Functions of the user's, which name the arguments that they want."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def names_of(function: Callable[..., Any]) -> list[str] | None:
    """Return the names of a function's arguments; `None` if it takes any."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def call(function: Callable[..., Any], offered: Mapping[str, Any]) -> Any:
    """Call a function with those of some arguments that it names."""
    names = names_of(function)
    return function(**{n: value for n, value in offered.items() if names is None or n in names})


def check(function: Callable[..., Any], what: str, known: Sequence[str]) -> None:
    """Refuse a function that asks for something that nobody can give.

    Raises:
        ValueError: with the argument that is not known.
    """
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        plain = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if plain and parameter.default is parameter.empty and parameter.name not in known:
            raise ValueError(
                f"The {what} has an argument {parameter.name!r}. It may have {', '.join(known)}."
            )
