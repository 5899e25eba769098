"""Operations that layers are traced with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from keras.src.backend.jax import nn as jax_nn
from keras.src.backend.jax import numpy as jax_numpy
from keras.src.losses import loss as loss_module


@contextlib.contextmanager
def replaced_operations(replacements: Any) -> Iterator[None]:
    """Have layers that are traced in the block use other operations.

    Args:
        replacements: an object with methods of the names below, as many as it likes, each of
            which takes Keras's own function before that function's arguments.
    """
    places = {
        "moments": jax_nn,
        "batch_normalization": jax_nn,
        "relu": jax_nn,
        "add": jax_numpy,
        "reduce_values": loss_module,
        "apply_mask": loss_module,
    }
    places = {name: module for name, module in places.items() if hasattr(replacements, name)}
    # They are replaced for all threads, so one traces at a time.
    with _replacing:
        originals = {name: getattr(module, name) for name, module in places.items()}
        for name, module in places.items():
            setattr(module, name, partial(getattr(replacements, name), originals[name]))
        try:
            yield
        finally:
            for name, module in places.items():
                setattr(module, name, originals[name])


_replacing = threading.RLock()
