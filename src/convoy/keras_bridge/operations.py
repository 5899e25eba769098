"""Replacement of Keras's operations while layers are traced.

Layers and losses call functions of Keras's backend modules, which are private. Replacing these
functions for the duration of a trace lets the engine substitute fused kernels, and sums over the
global batch, without a change to any layer.
"""

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from keras.src.backend.jax import core as jax_core
from keras.src.backend.jax import image as jax_image
from keras.src.backend.jax import nn as jax_nn
from keras.src.backend.jax import numpy as jax_numpy
from keras.src.losses import loss as loss_module


@contextlib.contextmanager
def replaced_operations(replacements: Any) -> Iterator[None]:
    """Replace operations that layers and losses use while they are traced in the block.

    Args:
        replacements: object with any of the methods named below. Each takes Keras's own function,
            followed by that function's arguments.
    """
    # The module in which layers look each name up.
    modules = {
        "cast": jax_core,
        "moments": jax_nn,
        "batch_normalization": jax_nn,
        "relu": jax_nn,
        "conv": jax_nn,
        "depthwise_conv": jax_nn,
        "conv_transpose": jax_nn,
        "max_pool": jax_nn,
        "average_pool": jax_nn,
        "affine_transform": jax_image,
        "add": jax_numpy,
        "reduce_values": loss_module,
        "apply_mask": loss_module,
    }
    modules = {name: module for name, module in modules.items() if hasattr(replacements, name)}
    # Modules are global, so only one thread traces at a time. The lock is reentrant: replacements
    # nest, as when the engine's are inside of those of the CPU kernels.
    with _replacing:
        originals = {name: getattr(module, name) for name, module in modules.items()}
        for name, module in modules.items():
            setattr(module, name, partial(getattr(replacements, name), originals[name]))
        try:
            yield
        finally:
            for name, module in modules.items():
                setattr(module, name, originals[name])


_replacing = threading.RLock()
