"""From what a YAML file says to dataclasses, each value of the kind that its field has."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from convoy.flags import Loader

_KINDS = {
    bool: "true or false",
    dict: "names with numbers",
    float: "a number",
    int: "a whole number",
    str: "a word",
    tuple: "a list",
}


def read_yaml(path: Path) -> dict[str, Any]:
    """Return what a YAML file says.

    Raises:
        ValueError: if there is none, or it is not one of settings.
    """
    try:
        tree = yaml.load(path.read_text(), Loader=Loader)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"{path} is not a file of settings: it has no names.")
    return tree


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: {value!r} is not a section with names in it.")
    return dict(value)


def check_keys(section: str, values: Mapping[str, Any], known: Iterable[str]) -> None:
    unknown = sorted(str(name) for name in values if name not in set(known))
    if unknown:
        raise ValueError(f"{section}{unknown[0]} is unknown; known: {', '.join(sorted(known))}.")


def read_section(kind: Any, section: str, values: Mapping[str, Any]) -> Any:
    """Make a dataclass of a section, each value of the kind that its field has."""
    fields = {f.name: f for f in dataclasses.fields(kind)}
    check_keys(f"{section}.", values, fields)
    for name, its in fields.items():
        required = its.default is its.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{section}.{name} is missing.")
    hints = typing.get_type_hints(kind)
    return kind(**{n: _understood(f"{section}.{n}", v, hints[n]) for n, v in values.items()})


def _understood(name: str, value: Any, hint: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return None if value is None else _understood(name, value, inner[0])
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_understood(name, item, inner[0]) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {
            _understood(name, key, inner[0]): _understood(name, item, inner[1])
            for key, item in value.items()
        }
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = hint if origin is None else None
    if hint is bool and value in (0, 1):
        return bool(value)
    if plain is None or not isinstance(value, plain) or (isinstance(value, bool) and hint is int):
        raise ValueError(f"{name}: {value!r} is not {_KINDS[origin or hint]}.")
    return value


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} {value!r} is not one of {', '.join(known)}.")


def at_least(section: str, name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{section}.{name} {value} is too small. Set it to {least} or more.")
