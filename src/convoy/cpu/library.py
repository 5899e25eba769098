"""The native library: finding and loading it, and calls into it.

It is a plain shared object, which links to oneDNN and OpenMP by name. So these are loaded first.
"""

import ctypes
import logging
import sys
from functools import cache
from typing import Any

import jax
import numpy as np
from convoy.cpu.kernel_dtypes import KERNELS, Array, CpuFeature
from convoy.native_library import installed_file

OPENMP = "libgomp.so.1"
# The values of `dnnl_cpu_isa_t`. Each contains the bits of the sets that it extends.
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
# Bits of oneDNN's instruction sets.
_FEATURES = {0x80: CpuFeature.BFLOAT16, 0x100: CpuFeature.FLOAT16}

# The names under which XLA finds the functions. A compiled program holds the name, not the address,
# so it can be read from the compilation cache by another process.
TARGETS = (
    "convoy_convolution",
    "convoy_matrix_product",
    "convoy_pack_weights",
    "convoy_inference_convolution",
    "convoy_max_pool",
    "convoy_sum_pool",
    "convoy_max_pool_gradient",
    "convoy_moments",
    "convoy_affine",
    "convoy_gradient_sums",
    "convoy_input_gradient",
    "convoy_channel_sums",
)


class Library:
    """The loaded native library."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self._handle = handle
        # Without these types, ctypes would pass a pointer as an integer of 32 bits.
        description_size_and_threads: Any = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        handle.convoy_convolution_implementation.restype = ctypes.c_char_p
        handle.convoy_convolution_implementation.argtypes = description_size_and_threads
        handle.convoy_matrix_product_implementation.restype = ctypes.c_char_p
        handle.convoy_matrix_product_implementation.argtypes = description_size_and_threads
        handle.convoy_packed_bytes.restype = ctypes.c_int64
        handle.convoy_packed_bytes.argtypes = description_size_and_threads
        handle.convoy_cached.restype = ctypes.c_int64
        handle.convoy_initialise()
        for target in TARGETS:
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
    def features(self) -> CpuFeature:
        """Features of this CPU that kernels may need."""
        bits = self._handle.convoy_instruction_set()
        found = CpuFeature.AVX2 if self._handle.convoy_computes_avx2_at_once() else CpuFeature.NONE
        for bit, feature in _FEATURES.items():
            found |= feature if bits & bit else CpuFeature.NONE
        return found

    @property
    def cached(self) -> int:
        """Number of convolutions in the cache."""
        return self._handle.convoy_cached()

    def implementation(self, description: np.ndarray, threads: int) -> str | None:
        """Return the name of the implementation that runs a convolution, or `None`."""
        name = self._handle.convoy_convolution_implementation(
            description.ctypes.data, description.size, threads
        )
        return name.decode() if name else None

    def product_implementation(self, description: np.ndarray, threads: int) -> str | None:
        """Return the name of the implementation that runs a matrix product, or `None`."""
        name = self._handle.convoy_matrix_product_implementation(
            description.ctypes.data, description.size, threads
        )
        return name.decode() if name else None

    def packed_bytes(self, description: np.ndarray, threads: int) -> int:
        """Return the size of a convolution's weights in the layout of its implementation."""
        return self._handle.convoy_packed_bytes(description.ctypes.data, description.size, threads)


def kernel_family(implementation: str) -> str:
    """Return the family that an implementation belongs to, as `convoy.cpu.status()` names it."""
    family = implementation.partition(":")[0]
    if family.startswith("widened "):
        return "oneDNN in float32"
    return {"winograd": "Winograd's method", "direct": "direct products"}.get(family, "oneDNN")


class Unavailable(Exception):  # noqa: N818 - a state that is reported, not an error
    """The reason why there is no native library in this process."""


@cache
def load() -> Library:
    """Load the library, once.

    Raises:
        Unavailable: if it was not built or does not load.
    """
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"there is no native library for {sys.platform}")
    kernels = installed_file("keras-convoy", "libconvoy_cpu.so")
    if kernels is None:
        raise Unavailable("the native library was not built: no C++ compiler at installation")
    onednn = installed_file("onednn-cpu-gomp", "libdnnl.so.3")
    if onednn is None:
        raise Unavailable("oneDNN is not installed: pip install onednn-cpu-gomp")
    try:
        # The kernels link to oneDNN by name, which resolves to the one that is loaded already.
        _load_openmp()
        ctypes.CDLL(str(onednn))
        return Library(ctypes.CDLL(str(kernels)))
    except OSError as error:
        raise Unavailable(f"the native library does not load: {error}") from error
    except AttributeError as error:
        # An editable install whose sources were updated after the library was built.
        raise Unavailable(
            "the native library is older than the package: install Convoy again"
        ) from error


def _load_openmp() -> None:
    """Load OpenMP's library: the system's, or the wheel's if the system has none.

    Raises:
        OSError: if there is neither.
    """
    try:
        ctypes.CDLL(OPENMP)
    except OSError:
        bundled = installed_file("keras-convoy", OPENMP)
        if bundled is None:
            raise
        ctypes.CDLL(str(bundled))


@cache
def find() -> Library | None:
    """Return the library; if there is none, return `None` and log the reason once."""
    try:
        return load()
    except Unavailable as reason:
        logging.getLogger("convoy.cpu").warning(
            "convolutions and poolings run on XLA's own kernels: %s", reason
        )
        return None


def find_for(kernel: str, *arrays: Array) -> Library | None:
    """Return the library if it runs a kernel of `kernel_dtypes` on these arrays on this CPU."""
    library = find()
    if library is None or not KERNELS[kernel].takes(library.features, *arrays):
        return None
    return library
