"""What must be settled before Keras and JAX start."""

from __future__ import annotations

import os
import sys


def start() -> None:
    """Choose Keras's backend, the devices, their kernels and memory; join other distributed."""
    _choose_backend()
    from convoy.cpu import memory

    # Before there are threads: each would bring memory of its own, which is not kept.
    memory.keep()
    from convoy import compilation_cache, cpu, devices, distributed

    count = devices.requested()
    if count is not None:
        devices.provide_virtual(count)
    distributed.join()
    compilation_cache.enable()
    cpu.enable()


def _choose_backend() -> None:
    keras = sys.modules.get("keras")
    if keras is not None:
        loaded = keras.config.backend()
        if loaded != "jax":
            raise ImportError(
                f"Convoy runs on Keras's JAX backend, but Keras was imported with {loaded!r}. "
                "Import convoy before keras, or set KERAS_BACKEND=jax before Python starts."
            )
    wanted = os.environ.setdefault("KERAS_BACKEND", "jax")
    if wanted != "jax":
        raise ImportError(
            f"Convoy runs on Keras's JAX backend, but KERAS_BACKEND is {wanted!r}. "
            "Unset it, or set KERAS_BACKEND=jax."
        )
