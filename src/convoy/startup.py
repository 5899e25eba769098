"""Settings that must be made before Keras and JAX start."""

import os
import sys


def start() -> None:
    """Prepare this process: backend, memory, devices, other processes, cache and CPU kernels."""
    _choose_backend()
    from convoy import versions

    versions.warn_of_untested()
    from convoy.cpu import memory

    # Before there are threads: each gets its own memory arena, which `keep` does not cover.
    memory.keep()
    from convoy import compilation_cache, cpu, devices, distributed

    count = devices.requested()
    if count is not None:
        devices.provide_virtual(count)
    distributed.join()
    compilation_cache.enable()
    cpu.enable()


def _choose_backend() -> None:
    """Select Keras's JAX backend.

    Raises:
        ImportError: if Keras was imported with another backend, or the environment selects one.
    """
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
