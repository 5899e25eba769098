"""`IPUConfig`: a tree of options that says which devices there are, and how they are used."""

from __future__ import annotations

import copy
import difflib
import json
from enum import IntEnum
from typing import Any

from convoy.ipu import flags
from convoy.ipu.enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from convoy.ipu.notice import log
from convoy.ipu.options import OPTIONS
from convoy.ipu.options import Option as AttributeMetadata
from convoy.ipu.system import configure_ipu_system, get_ipu_config, reset_ipu_configuration

__all__ = [
    "AttributeMetadata",
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "configure_ipu_system",
    "get_ipu_config",
    "reset_ipu_configuration",
    "running_on_ipu_model",
]

_BY_NAME = {option.name: option for option in OPTIONS}
_CATEGORIES = {
    name.rsplit(".", depth)[0] for name in _BY_NAME for depth in range(1, name.count(".") + 1)
}


class _Category:
    """A place in the tree of options; all values are kept by the root."""

    def __init__(self, values: dict[str, Any], path: str) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copy and pickle ask for
            raise AttributeError(name)
        path = self._path + name
        if path in _BY_NAME:
            return self._values[path]
        if path in _CATEGORIES:
            return _Category(self._values, f"{path}.")
        raise ValueError(_unknown(path))

    def __setattr__(self, name: str, value: Any) -> None:
        path = self._path + name
        if path in _CATEGORIES:
            raise Exception(f"{path} is a category of options. Assign to one of its options.")
        option = _BY_NAME.get(path)
        if option is None:
            raise ValueError(_unknown(path))
        option.check_type(value)
        option.warn_if_deprecated()
        self._values[path] = value

    def get_attribute_metadata(self, name: str) -> AttributeMetadata:
        """Return what is known of an option.

        Args:
            name: its name, with dots, from here on.

        Raises:
            ValueError: if there is none of that name.
        """
        option = _BY_NAME.get(self._path + name)
        if option is None:
            raise ValueError(_unknown(self._path + name))
        return option

    def __dir__(self) -> list[str]:
        names = [*_BY_NAME, *_CATEGORIES]
        here = {n[len(self._path) :].split(".")[0] for n in names if n.startswith(self._path)}
        return sorted({*super().__dir__(), *here})

    def __str__(self) -> str:
        return "\n".join(
            f"{name} = {value!r}"
            for name, value in self._values.items()
            if name.startswith(self._path)
        )

    def __repr__(self) -> str:
        return "\n    ".join([type(self).__name__.lstrip("_"), *str(self).splitlines()])


class IPUConfig(_Category):
    """A configuration of the devices, which holds from `configure_ipu_system()` on.

    Example:
    ```python
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    ```
    """

    def __init__(self) -> None:
        super().__init__({o.name: copy.deepcopy(o.default) for o in OPTIONS}, "")

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Have strategies use this configuration from now on; later changes have no effect on it.

        Args:
            device: of the host; there is only one.
        """
        configure_ipu_system(self, device)

    def to_dict(self) -> dict[str, Any]:
        """Return all options by their names with dots; enumerations as numbers."""
        return {name: _plain(value) for name, value in self._values.items()}

    def from_dict(self, values: dict[str, Any]) -> None:
        """Take over options from what `to_dict` returned; others keep their values.

        Raises:
            ValueError: if a name is unknown.
            TypeError: if a value is of a wrong type.
        """
        missing = [name for name in self._values if name not in values]
        if missing:
            log.warning(f"Not in the dict, and left as they are: {', '.join(missing)}.")
        for path, value in values.items():
            *categories, name = path.split(".")
            place: Any = self
            for category in categories:
                place = getattr(place, category)
            default = getattr(place, name)
            setattr(place, name, type(default)(value) if isinstance(default, IntEnum) else value)

    def to_json(self) -> str:
        """Return all options as text."""
        return json.dumps(self.to_dict())

    def from_json(self, text: str) -> None:
        """Take over options from what `to_json` returned."""
        self.from_dict(json.loads(text))

    def __deepcopy__(self, memo: dict[int, Any]) -> IPUConfig:
        other = IPUConfig()
        other._values.update(copy.deepcopy(self._values, memo))
        return other


def running_on_ipu_model() -> bool:
    """Say whether `TF_POPLAR_FLAGS` has `--use_ipu_model`; the devices are the same."""
    return flags.read().simulates


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, IntEnum) else copy.deepcopy(value)


def _unknown(path: str) -> str:
    last = path.rsplit(".", 1)[-1]
    elsewhere = [name for name in _BY_NAME if name.rsplit(".", 1)[-1] == last]
    near = elsewhere or difflib.get_close_matches(path, [*_BY_NAME, *_CATEGORIES], 1)
    advice = f"Did you mean {near[0]}?" if near else "print(config) lists all options."
    return f"IPUConfig has no option {path}. {advice}"
