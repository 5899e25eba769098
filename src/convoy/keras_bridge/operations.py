"""Replacement of Keras's operations while layers are traced.

Layers and losses call functions of Keras's backend modules, which are private. Replacing these
functions for the duration of a trace lets the engine substitute fused kernels, and sums over the
global batch, without a change to any layer.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from convoy import context
from keras.layers import BatchNormalization
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
    # The module or class in which layers look each name up.
    owners = {
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
        # This is a method, because batch normalisation with a mask has no operation that could be
        # replaced.
        "masked_moments": BatchNormalization,
    }
    names = {"masked_moments": "_moments"}
    replaced = [
        (owner, names.get(name, name), getattr(replacements, name))
        for name, owner in owners.items()
        if hasattr(replacements, name)
    ]
    # Modules are global, so only one thread traces at a time. The lock is reentrant, because
    # replacements nest: those of the engine are inside those of the CPU kernels.
    with _replacing:
        operations = [
            (owner, name, _with_original(replacement, getattr(owner, name)))
            for owner, name, replacement in replaced
        ]
        with context.changed(operations):
            yield


_replacing = threading.RLock()


def _with_original(replacement: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """Pass the original as first argument. A `partial` would not be bound as a method."""

    @wraps(original)
    def operation(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    return operation


def count_kept(layer: BatchNormalization, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the number of values in each channel that a mask keeps."""
    kept = jnp.broadcast_to(jnp.expand_dims(mask, -1), x.shape).astype(x.dtype)
    # A private attribute: all axes except those of the channels.
    return jnp.squeeze(jnp.sum(kept, axis=tuple(layer._reduction_axes)))
