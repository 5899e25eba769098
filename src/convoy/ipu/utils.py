"""Names that scripts import from here, and small tools."""

from __future__ import annotations

from typing import Any

import keras
from convoy.ipu import system
from convoy.ipu.config import (
    DeviceConnectionType,
    ExecutionProfileType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
    running_on_ipu_model,
)

__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SchedulingAlgorithm",
    "SelectionOrder",
    "StochasticRoundingBehaviour",
    "configure_ipu_system",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_configuration",
    "reset_ipu_seed",
    "running_on_ipu_model",
    "use_synthetic_data_for",
]


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """Return how many devices a logical device has."""
    del device
    return len(system.devices_of(ipu_device))


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Begin all random numbers from a seed: those of Python, NumPy and Keras.

    Raises:
        NotImplementedError: if replicas are to draw the same numbers.
    """
    del cpu_device
    system.devices_of(device)
    if experimental_identical_replicas:
        raise NotImplementedError(
            "experimental_identical_replicas=True: every replica draws from a stream of its own. "
            "Leave it out."
        )
    keras.utils.set_random_seed(seed)


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Do nothing: initial values are computed on the host in any case."""
    del graph


def use_synthetic_data_for(synthetic_data_category: Any) -> bool:
    """Say whether data of a kind is made up on the device: never, it is the script's."""
    del synthetic_data_category
    return False
