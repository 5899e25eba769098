"""`IPUConfig`: the tree of options that selects devices and configures their use."""

from __future__ import annotations

import copy
import difflib
import json
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import jax
from convoy import devices as device_choice
from convoy.ipu import config_checks, environment, notice
from convoy.ipu.enums import (
    DeviceConnectionType,
    ExecutionProfileType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)
from convoy.ipu.options import OPTIONS
from convoy.ipu.options import Option as AttributeMetadata
from convoy.types import Json

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
    """A node in the tree of options. All values are kept by the root."""

    def __init__(self, values: Json, path: str) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # looked up by copy and pickle
            raise AttributeError(name)
        path = self._path + name
        if path in _CATEGORIES:
            return _Category(self._values, f"{path}.")
        return self._values[self.get_attribute_metadata(name).name]

    def __setattr__(self, name: str, value: object) -> None:
        path = self._path + name
        if path in _CATEGORIES:
            raise Exception(f"{path} is a category of options. Assign to one of its options.")
        option = self.get_attribute_metadata(name)
        option.check_type(value)
        if option.deprecated:
            notice.log.warning(f"{option.name} is deprecated. {option.deprecated_msg}")
        self._values[path] = value

    def get_attribute_metadata(self, name: str) -> AttributeMetadata:
        """Return type, default and documentation of an option.

        Args:
            name: dotted name of the option, relative to this category.

        Raises:
            ValueError: if there is no option of that name.
        """
        path = self._path + name
        if path not in _BY_NAME:
            last = path.rsplit(".", 1)[-1]
            elsewhere = [known for known in _BY_NAME if known.rsplit(".", 1)[-1] == last]
            near = elsewhere or difflib.get_close_matches(path, [*_BY_NAME, *_CATEGORIES], 1)
            advice = f"Did you mean {near[0]}?" if near else "print(config) lists all options."
            raise ValueError(f"IPUConfig has no option {path}. {advice}")
        return _BY_NAME[path]

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
    """A configuration of the devices, applied by `configure_ipu_system()`.

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
        """Apply this configuration. Later changes of the object have no effect.

        Args:
            device: no effect, since there is one host.
        """
        configure_ipu_system(self, device)

    def to_dict(self) -> Json:
        """Return all options by dotted name, enumerations as numbers."""
        return {
            name: int(value) if isinstance(value, IntEnum) else copy.deepcopy(value)
            for name, value in self._values.items()
        }

    def from_dict(self, values: Json) -> None:
        """Set options from the result of `to_dict`; others keep their values.

        Raises:
            ValueError: if a name is unknown.
            TypeError: if a value has the wrong type.
        """
        missing = [name for name in self._values if name not in values]
        if missing:
            notice.log.warning(f"Not in the dict, so not changed: {', '.join(missing)}.")
        for path, value in values.items():
            category, _, name = path.rpartition(".")
            owner = _Category(self._values, f"{category}." if category else "")
            default = getattr(owner, name)
            setattr(owner, name, type(default)(value) if isinstance(default, IntEnum) else value)

    def to_json(self) -> str:
        """Return all options as JSON."""
        return json.dumps(self.to_dict())

    def from_json(self, text: str) -> None:
        """Set options from the result of `to_json`."""
        self.from_dict(json.loads(text))

    def __deepcopy__(self, memo: dict[int, object]) -> IPUConfig:
        other = IPUConfig()
        other._values.update(copy.deepcopy(self._values, memo))
        return other


@dataclass(frozen=True)
class Applied:
    """A configuration that was applied.

    Attributes:
        config: a copy of the configuration.
        devices: the devices of each logical device, from `/device:IPU:0` on.
    """

    config: IPUConfig
    devices: tuple[tuple[jax.Device, ...], ...]


_applied: Applied | None = None


def configure_ipu_system(
    config: IPUConfig, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Apply a configuration.

    Args:
        config: an `IPUConfig`. Numbers in `auto_select_ipus` and `select_ipus` become lists.
        device: no effect, since there is one host.
        reset_configuration: whether another configuration may be replaced.

    Raises:
        TypeError: if it is not an `IPUConfig`.
        ValueError: if options do not fit together, or there are too few devices.
    """
    global _applied
    if not isinstance(config, IPUConfig):
        raise TypeError(
            f"configure_ipu_system() takes an IPUConfig, but received {type(config).__name__}."
        )
    for name in ("auto_select_ipus", "select_ipus"):
        value = getattr(config, name)
        if isinstance(value, int):
            setattr(config, name, [value])
    config_checks.check(config)
    environment.apply_flags()
    if _applied is not None:
        if _applied.config.to_dict() == config.to_dict():
            return
        if not reset_configuration:
            raise ValueError("A configuration is applied. Call reset_ipu_configuration() first.")
        notice.log.warning("Resetting existing IPU configuration before applying new configuration")
        _applied = None
    _applied = Applied(copy.deepcopy(config), config_checks.select_devices(config))
    notice.no_effect("the configuration", config_checks.ignored_options(config))


def reset_ipu_configuration() -> None:
    """Drop the applied configuration. Models that were made under it keep their devices."""
    global _applied
    _applied = None


def get_ipu_config(session: object = None) -> list[IPUConfig]:
    """Return the applied configuration, once for each logical device.

    Raises:
        RuntimeError: if none was applied.
    """
    if _applied is None:
        raise RuntimeError("No IPU system is configured. Call configure_ipu_system() first.")
    return [copy.deepcopy(_applied.config) for _ in _applied.devices]


def running_on_ipu_model() -> bool:
    """Return whether `TF_POPLAR_FLAGS` has `--use_ipu_model`; the devices are the same."""
    return environment.read_flags().is_simulated


def applied() -> Applied:
    """Return the applied configuration; by default one logical device with one device."""
    environment.apply_flags()
    return _applied or Applied(IPUConfig(), (device_choice.select(1),))


def devices_of(name: str) -> tuple[jax.Device, ...]:
    """Return the devices of a logical device.

    Raises:
        ValueError: if it is not the name of an IPU, or is not configured.
    """
    found = re.fullmatch(r"/?(?:.*/)?device:IPU:(\d+)", name)
    if found is None:
        raise ValueError(f"{name!r} is not an IPU. Pass '/device:IPU:0', or another number.")
    logical, ordinal = applied().devices, int(found[1])
    if ordinal >= len(logical):
        raise ValueError(
            f"{name!r} is not configured. Pass 0 to {len(logical) - 1}, or select more devices."
        )
    return logical[ordinal]
