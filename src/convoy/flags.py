"""What a flag is, and how its words become a value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import yaml

TRUE = ("true", "t", "1", "yes", "y", "on")
FALSE = ("false", "f", "0", "no", "n", "off")

_METADATA = "flag"


@dataclass(frozen=True)
class Flag:
    """A flag's meaning, kept with the field of `Options` that holds its value.

    Attributes:
        help: what it does, in a line.
        group: under which title it is listed.
        read: turns a word into a value, or raises a `ValueError` that says what was expected.
        choices: the words that are allowed, if only some are.
        many: whether it takes several words.
        no_effect: why it changes nothing here, if it is only accepted for the sake of old commands.
    """

    help: str
    group: str
    read: Callable[[str], Any]
    choices: tuple[str, ...] = ()
    many: bool = False
    no_effect: str = ""


def flag(
    default: Any,
    help: str,
    read: Callable[[str], Any],
    *,
    group: str,
    choices: tuple[str, ...] = (),
    many: bool = False,
    no_effect: str = "",
) -> Any:
    """Declare a field of `Options` that is a flag."""
    metadata = {_METADATA: Flag(help, group, read, choices, many, no_effect)}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def flag_of(metadata: Any) -> Flag:
    """Return the flag that a field was declared with."""
    return metadata[_METADATA]


def text(word: str) -> str:
    return word


def whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"{word!r} is not a whole number") from None


def number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{word!r} is not a number") from None


def boolean(word: str) -> bool:
    """Read a word that means yes or no."""
    lower = word.lower()
    if lower in TRUE or lower in FALSE:
        return lower in TRUE
    raise ValueError(f"{word!r} is neither true nor false")


def fraction(word: str) -> Fraction:
    """Read a number, or two with a slash between them; `1/3` stays exact."""
    try:
        parts = [Fraction(part.strip()) for part in word.split("/")]
        if len(parts) > 2:
            raise ValueError
        return parts[0] if len(parts) == 1 else parts[0] / parts[1]
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{word!r} is neither a number nor a fraction such as 1/2") from None


def mapping(word: str) -> dict[str, Any]:
    """Read a dictionary in YAML or JSON."""
    try:
        value = yaml.load(word, Loader=Loader)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{word!r} is not a dictionary such as '{{\"momentum\": 0.9}}'")
    return value


class Loader(yaml.SafeLoader):
    """YAML in which `1e-5` is a number, as in JSON."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)
