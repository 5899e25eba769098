"""The configuration in force, and the devices that it makes available."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from convoy import devices as device_choice
from convoy.ipu import flags, notice
from convoy.ipu.enums import DeviceConnectionType, SelectionOrder, StochasticRoundingBehaviour
from convoy.ipu.options import OPTIONS

if TYPE_CHECKING:
    from convoy.ipu.config import IPUConfig


@dataclass(frozen=True)
class Applied:
    """A configuration that was checked.

    Attributes:
        config: a copy of it.
        devices: of each logical device, `/device:IPU:0` and up.
    """

    config: IPUConfig
    devices: tuple[tuple[jax.Device, ...], ...]


_applied: Applied | None = None


def configure_ipu_system(
    config: IPUConfig, device: str = "cpu", reset_configuration: bool = True
) -> None:
    """Have strategies use a configuration from now on.

    Args:
        config: an `IPUConfig`. Numbers in `auto_select_ipus` and `select_ipus` become lists.
        device: of the host; there is only one.
        reset_configuration: whether another configuration may be replaced.

    Raises:
        TypeError: if it is not an `IPUConfig`.
        ValueError: if options do not fit together, or there are too few devices.
    """
    from convoy.ipu.config import IPUConfig  # it imports this file

    global _applied
    del device
    if not isinstance(config, IPUConfig):
        raise TypeError(
            f"configure_ipu_system() takes an IPUConfig, but received {type(config).__name__}."
        )
    for name in ("auto_select_ipus", "select_ipus"):
        value = getattr(config, name)
        if isinstance(value, int):
            setattr(config, name, [value])
    _check(config)
    flags.heed()
    if _applied is not None:
        if _applied.config.to_dict() == config.to_dict():
            return
        if not reset_configuration:
            raise ValueError(
                "Another IPU configuration is in force. Call reset_ipu_configuration() first, or "
                "leave out reset_configuration=False."
            )
        notice.log.warning("Resetting existing IPU configuration before applying new configuration")
        reset_ipu_configuration()
    devices = _select(config)
    _applied = Applied(copy.deepcopy(config), devices)
    _name_what_has_no_effect(config)


def reset_ipu_configuration() -> None:
    """Drop the configuration in force. Models that were made under it keep their devices."""
    global _applied
    _applied = None


def get_ipu_config(session: Any = None) -> list[IPUConfig]:
    """Return the configuration in force, once for each logical device.

    Raises:
        RuntimeError: if there is none.
    """
    del session
    if _applied is None:
        raise RuntimeError("No IPU system is configured. Call configure_ipu_system() first.")
    return [copy.deepcopy(_applied.config) for _ in _applied.devices]


def in_force() -> Applied:
    """Return what was configured; by default one logical device with one device."""
    flags.heed()
    if _applied is not None:
        return _applied
    from convoy.ipu.config import IPUConfig  # it imports this file

    return Applied(IPUConfig(), (device_choice.select(1),))


def devices_of(name: str) -> tuple[jax.Device, ...]:
    """Return the devices of a logical device.

    Raises:
        ValueError: if it is not the name of an IPU, or was not configured.
    """
    found = re.fullmatch(r"/?(?:.*/)?device:IPU:(\d+)", name)
    if found is None:
        raise ValueError(f"{name!r} is not an IPU. Pass '/device:IPU:0', or another number.")
    logical, ordinal = in_force().devices, int(found[1])
    if ordinal >= len(logical):
        raise ValueError(
            f"{name!r} is not configured: there are {len(logical)} logical devices. Give "
            "auto_select_ipus an entry for each, and call configure_ipu_system()."
        )
    return logical[ordinal]


def stochastic_rounding(config: IPUConfig) -> StochasticRoundingBehaviour:
    """Return the rounding that holds, `set_all` considered."""
    behaviour = config.floating_point_behaviour
    return StochasticRoundingBehaviour.ON if behaviour.set_all else behaviour.esr


def _check(config: IPUConfig) -> None:
    for option in OPTIONS:  # dicts and lists can be changed in place
        option.check_type(config._values[option.name])
    if config.auto_select_ipus and config.select_ipus:
        raise Exception("Both auto_select_ipus and select_ipus are set. Set one of them.")
    if len(set(config.select_ipus)) < len(config.select_ipus):
        raise ValueError(
            f"select_ipus = {config.select_ipus} names a device twice. Name each once."
        )
    if any(count < 1 for count in config.auto_select_ipus):
        raise ValueError(
            f"auto_select_ipus = {config.auto_select_ipus}: a logical device needs 1 or more."
        )
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if group < 1:
        raise ValueError(
            f"norms.experimental.distributed_batch_norm_replica_group_size = {group} is not a "
            "number of replicas. Assign 1 or more."
        )
    tiles = config.io_tiles
    if tiles.place_ops_on_io_tiles and tiles.num_io_tiles < 1:
        raise ValueError("io_tiles.place_ops_on_io_tiles needs io_tiles.num_io_tiles of 1 or more.")
    if group > 1 and tiles.num_io_tiles > 0:
        raise ValueError(
            "norms.experimental.distributed_batch_norm_replica_group_size does not go together "
            "with io_tiles.num_io_tiles. Set one of them."
        )
    connection = config.device_connection
    needs_version = (DeviceConnectionType.PRE_COMPILE, DeviceConnectionType.NEVER)
    if connection.type in needs_version and not connection.version:
        raise ValueError(
            f"device_connection.type = {connection.type.name} needs device_connection.version, for "
            "example 'ipu2'."
        )
    if flags.read().simulates:
        _check_simulation(config)
    distribution = config.experimental.multi_replica_distribution
    index, count = distribution.process_index, distribution.process_count
    if count and not 0 <= index < count:
        raise ValueError(
            f"experimental.multi_replica_distribution.process_index = {index} is not from 0 to "
            f"{count - 1}, as process_count = {count} says."
        )
    if count > 1:
        raise NotImplementedError(
            f"experimental.multi_replica_distribution.process_count = {count}: replicas are those "
            "of one process. Leave it at 0, and select more devices."
        )


def _check_simulation(config: IPUConfig) -> None:
    if config.select_ipus:
        raise ValueError(
            f"select_ipus = {config.select_ipus}, but {flags.VARIABLE} has --use_ipu_model, which "
            "has no devices with numbers. Use auto_select_ipus."
        )
    if not config.ipu_model.version:
        raise ValueError(
            f"ipu_model.version is empty, but {flags.VARIABLE} has --use_ipu_model. Assign for "
            "example 'ipu2'."
        )


def _select(config: IPUConfig) -> tuple[tuple[jax.Device, ...], ...]:
    if config.select_ipus:
        present = device_choice.select(max(config.select_ipus) + 1)
        return tuple((present[number],) for number in config.select_ipus)
    counts = config.auto_select_ipus or [1]
    present = device_choice.select(sum(counts))
    logical = []
    for count in counts:
        logical.append(_ordered(present[:count], config.selection_order))
        present = present[count:]
    return tuple(logical)


def _ordered(
    devices: Sequence[jax.Device], selection_order: SelectionOrder
) -> tuple[jax.Device, ...]:
    numbers = range(len(devices))
    if selection_order == SelectionOrder.SNAKE:
        # Pairs, every second one turned round: 0 1 3 2 4 5 7 6.
        order = sorted(numbers, key=lambda n: (n // 2, n % 2 ^ (n // 2) % 2))
    elif selection_order == SelectionOrder.HOOF:
        # Up one side and down the other: 0 2 4 ... 5 3 1.
        order = [*numbers[::2], *reversed(numbers[1::2])]
    else:
        order = list(numbers)
    return tuple(devices[number] for number in order)


def _name_what_has_no_effect(config: IPUConfig) -> None:
    changed = [
        option.name
        for option in OPTIONS
        if not option.has_effect and config._values[option.name] != option.default
    ]
    for category in ("convolutions", "matmuls"):
        others = getattr(config, category).poplar_options.items() - {("partialsType", "float")}
        changed += [f"{category}.poplar_options[{key!r}]" for key, _ in others]
    words = config.compilation_poplar_options
    changed += [
        f"compilation_poplar_options[{key!r}]" for key in words if not key.startswith("autoReport.")
    ]
    notice.without_effect(changed, "the configuration")
