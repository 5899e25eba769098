"""The native library: where it is, what it can do.

It is a plain shared object, so it is found through the list of files its distribution installed,
in an editable install as well as in a wheel; likewise oneDNN's, which must be loaded first.
"""

import ctypes
import logging
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

_INSTRUCTION_SETS = {
    0x0: "any x86-64",
    0x1: "SSE4.1",
    0x3: "AVX",
    0x7: "AVX2",
    0xF: "AVX2 with VNNI",
    0x1F: "AVX2 with VNNI 2",
    0x27: "AVX-512",
    0x67: "AVX-512 with VNNI",
    0xE7: "AVX-512 with bfloat16",
    0x1EF: "AVX-512 with float16",
    0xFEF: "AVX-512 with AMX",
    0x1FEF: "AVX-512 with AMX float16",
}
_BFLOAT16_BIT = 0x80
_FLOAT16_BIT = 0x100


_TARGETS = (
    "convoy_convolution",
    "convoy_pack_weights",
    "convoy_fused_convolution",
    "convoy_max_pool",
    "convoy_sum_pool",
    "convoy_max_pool_gradient",
    "convoy_moments",
    "convoy_affine",
    "convoy_gradient_sums",
    "convoy_input_gradient",
)


class Library:
    """The loaded native library."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._handle = handle
        asks_about_one: Any = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        handle.convoy_convolution_implementation.restype = ctypes.c_char_p
        handle.convoy_convolution_implementation.argtypes = asks_about_one
        handle.convoy_packed_bytes.restype = ctypes.c_int64
        handle.convoy_packed_bytes.argtypes = asks_about_one
        handle.convoy_cached.restype = ctypes.c_int64
        handle.convoy_initialise()
        for target in _TARGETS:
            capsule = jax.ffi.pycapsule(getattr(handle, target))
            jax.ffi.register_ffi_target(target, capsule, platform="cpu")

    @property
    def onednn_version(self) -> str:
        number = self._handle.convoy_onednn_version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    @property
    def instruction_set(self) -> str:
        bits = self._handle.convoy_instruction_set()
        return _INSTRUCTION_SETS.get(bits, hex(bits))

    @property
    def has_own_convolutions(self) -> bool:
        """Whether Convoy's own convolutions are worth using on this CPU."""
        return bool(self._handle.convoy_computes_avx2_at_once())

    @property
    def cached(self) -> int:
        """Number of primitives in the cache."""
        return self._handle.convoy_cached()

    def computes(self, dtype: str) -> bool:
        """Whether this CPU has instructions of its own for a type."""
        bits = self._handle.convoy_instruction_set()
        return (
            dtype == "float32"
            or (dtype == "bfloat16" and bool(bits & _BFLOAT16_BIT))
            or (dtype == "float16" and bool(bits & _FLOAT16_BIT))
        )

    def implementation(self, description: np.ndarray, threads: int) -> str | None:
        """Name what a convolution would be run with, if there is anything worth running."""
        name = self._handle.convoy_convolution_implementation(
            description.ctypes.data, description.size, threads
        )
        return name.decode() if name else None

    def packed_bytes(self, description: np.ndarray, threads: int) -> int:
        """Return the size of a convolution's weights in the layout that it is run with."""
        return self._handle.convoy_packed_bytes(description.ctypes.data, description.size, threads)


def maker(implementation: str) -> str:
    """Name whose kernel an implementation is."""
    family = implementation.partition(":")[0]
    return {"winograd": "Winograd's method", "direct": "direct products"}.get(family, "oneDNN")


class Unavailable(Exception):  # noqa: N818 - a state that is reported, not an error
    """Why there is no native library in this process."""


@cache
def load() -> Library:
    """Load the library, once.

    Raises:
        Unavailable: if it was not built, or does not load here.
    """
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"there is no native library for {sys.platform}")
    kernels = _installed("keras-convoy", "libconvoy_cpu.so")
    if kernels is None:
        raise Unavailable("the native library was not built: no C++ compiler at installation")
    onednn = _installed("onednn-cpu-gomp", "libdnnl.so.3")
    if onednn is None:
        raise Unavailable("oneDNN is not installed: pip install onednn-cpu-gomp")
    try:
        # Loaded by its path, oneDNN answers when the kernels ask for it by its name.
        ctypes.CDLL(str(onednn))
        return Library(ctypes.CDLL(str(kernels)))
    except OSError as error:
        raise Unavailable(f"the native library does not load: {error}") from error
    except AttributeError as error:
        # Sources were updated under an editable install, whose library stayed as it was.
        raise Unavailable("the native library is older than the package: install again") from error


def find() -> Library | None:
    """Return the library; where there is none, say why, the first time, and return None."""
    try:
        return load()
    except Unavailable as reason:
        say_once(str(reason))
        return None


@cache
def say_once(reason: str) -> None:
    logging.getLogger("convoy.cpu").warning(
        "convolutions and poolings run on XLA's own kernels: %s", reason
    )


def _installed(distribution: str, name: str) -> Path | None:
    try:
        files: Any = metadata.files(distribution) or ()
    except metadata.PackageNotFoundError:
        return None
    found = (Path(file.locate()) for file in files if file.name == name)
    return next((path.resolve() for path in found if path.exists()), None)
