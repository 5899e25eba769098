"""Utilities, and the names of `convoy.ipu.config`."""

import keras
from convoy.ipu import config
from convoy.ipu.config import *  # noqa: F403

__all__ = [
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_seed",
    "use_synthetic_data_for",
]
__all__ += config.__all__


def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """Return the number of devices of a logical device."""
    return len(config.devices_of(ipu_device))


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> None:
    """Set the random seed of Python, NumPy and Keras.

    Raises:
        NotImplementedError: if replicas are to draw the same numbers.
    """
    config.devices_of(device)
    if experimental_identical_replicas:
        raise NotImplementedError("experimental_identical_replicas is not supported. Leave it out.")
    keras.utils.set_random_seed(seed)


def move_variable_initialization_to_cpu(graph: object = None) -> None:
    """Do nothing: initial values are always computed on the host."""


def use_synthetic_data_for(synthetic_data_category: object) -> bool:
    """Return `False`: no data is generated on the device."""
    return False
