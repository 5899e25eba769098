"""Checks of an `IPUConfig` when it is applied, and the devices that it selects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
from convoy import devices as device_choice
from convoy.ipu import environment
from convoy.ipu.enums import DeviceConnectionType, SelectionOrder
from convoy.ipu.options import OPTIONS

if TYPE_CHECKING:
    from convoy.ipu.config import IPUConfig


def check(config: IPUConfig) -> None:
    """Check types, and options that depend on each other.

    Raises:
        Exception: if devices are selected in two ways, as in Graphcore's software.
        TypeError: if an option has the wrong type.
        ValueError: if options do not fit together.
        NotImplementedError: if there are several processes.
    """
    for option in OPTIONS:  # dicts and lists can be changed in place
        option.check_type(config._values[option.name])
    if config.auto_select_ipus and config.select_ipus:
        raise Exception("Both auto_select_ipus and select_ipus are set. Set one of them.")
    if len(set(config.select_ipus)) < len(config.select_ipus):
        raise ValueError(f"select_ipus = {config.select_ipus} names a device twice. Name it once.")
    if any(count < 1 for count in config.auto_select_ipus):
        raise ValueError(
            f"auto_select_ipus = {config.auto_select_ipus}: assign numbers of 1 or more."
        )
    name = "norms.experimental.distributed_batch_norm_replica_group_size"
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if group < 1:
        raise ValueError(f"{name} = {group} is not a number of replicas. Assign 1 or more.")
    tiles = config.io_tiles
    if tiles.place_ops_on_io_tiles and tiles.num_io_tiles < 1:
        raise ValueError(
            "io_tiles.place_ops_on_io_tiles needs io_tiles.num_io_tiles of 1 or more. Set both."
        )
    if group > 1 and tiles.num_io_tiles > 0:
        raise ValueError(f"{name} excludes io_tiles.num_io_tiles. Set one of them.")
    connection = config.device_connection
    needs_version = (DeviceConnectionType.PRE_COMPILE, DeviceConnectionType.NEVER)
    if connection.type in needs_version and not connection.version:
        raise ValueError(
            f"device_connection.type = {connection.type.name} needs device_connection.version. Set "
            "it, for example to 'ipu2'."
        )
    if environment.read_flags().is_simulated:
        flag = f"{environment.FLAGS}=--use_ipu_model"
        if config.select_ipus:
            raise ValueError(f"Devices of {flag} have no numbers. Use auto_select_ipus.")
        if not config.ipu_model.version:
            raise ValueError(f"{flag} needs ipu_model.version, for example 'ipu2'.")
    name = "experimental.multi_replica_distribution"
    distribution = config.experimental.multi_replica_distribution
    index, count = distribution.process_index, distribution.process_count
    if count and not 0 <= index < count:
        raise ValueError(f"{name}.process_index = {index}. Assign a number from 0 to {count - 1}.")
    if count > 1:
        raise NotImplementedError(
            f"{name}.process_count = {count}: replicas are those of one process. Leave it at 0."
        )


def select_devices(config: IPUConfig) -> tuple[tuple[jax.Device, ...], ...]:
    """Return the devices of each logical device.

    Raises:
        ValueError: if there are too few devices.
    """
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
    order = list(numbers)
    if selection_order == SelectionOrder.SNAKE:
        # Pairs, every second one reversed: 0 1 3 2 4 5 7 6.
        order = sorted(numbers, key=lambda n: (n // 2, n % 2 ^ (n // 2) % 2))
    elif selection_order == SelectionOrder.HOOF:
        # Up one side and down the other: 0 2 4 ... 5 3 1.
        order = [*numbers[::2], *reversed(numbers[1::2])]
    return tuple(devices[number] for number in order)


def ignored_options(config: IPUConfig) -> dict[str, bool]:
    """Return the options without an effect here, and whether each was changed."""
    changed = {
        option.name: config._values[option.name] != option.default
        for option in OPTIONS
        if not option.doc
    }
    for category in ("convolutions", "matmuls"):
        others = getattr(config, category).poplar_options.items() - {("partialsType", "float")}
        changed |= {f"{category}.poplar_options[{key!r}]": True for key, _ in others}
    for key in config.compilation_poplar_options:
        changed[f"compilation_poplar_options[{key!r}]"] = not key.startswith("autoReport.")
    return changed
