"""Strict type and rank promotion for the code of this repository.

Under `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"`, JAX refuses
`float16 + float32` and `(8, 3) + (3,)`: both are usually mistakes, and neither is visible in a
result. Keras relies on both forms of promotion in its own layers, losses and optimizers, and our
step traces through that code, so neither the settings alone nor a context manager around our calls
can separate the two. Therefore each refused promotion is attributed to the innermost frame outside
of JAX: in a file of this repository it is an error, in an installed package it is carried out.

JAX's functions are jitted, and a trace is not checked again. The settings are part of the key of
JAX's cache, so operators and other ufuncs, nearly all of what promotes, are run with the standard
settings where an installed package calls them. The few other functions (such as `jnp.where`) are
checked as long as no installed package has called them with the same shapes and types before.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax._src import dtypes
from jax._src.config import NumpyDtypePromotion
from jax._src.numpy import util

ROOT = Path(__file__).resolve().parents[1]
CHECKED = tuple(str(ROOT / name) + "/" for name in ("src", "tests", "examples", "benchmarks"))
PACKAGES = (jax.__file__, sys.modules["jaxlib"].__file__)
JAX = (*(str(Path(file).parent) + "/" for file in PACKAGES), __file__)


def enable() -> None:
    """Turn the strict settings on for this process."""
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")

    # JAX has no hook for these decisions. The functions are looked up in their modules.
    strict_type, refuse_ranks = dtypes._least_upper_bound, util._rank_promotion_warning_or_error
    call_ufunc = jnp.ufunc.__call__

    def call(self, *args, **kwargs):
        if _is_checked():
            return call_ufunc(self, *args, **kwargs)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return call_ufunc(self, *args, **kwargs)

    def promoted_type(mode, x64, *types):
        try:
            return strict_type(mode, x64, *types)
        except dtypes.TypePromotionError:
            if _is_checked():
                raise
            return strict_type(NumpyDtypePromotion.STANDARD, x64, *types)

    def promote_ranks(name, shapes):
        if _is_checked():
            refuse_ranks(name, shapes)

    jnp.ufunc.__call__ = call
    dtypes._least_upper_bound = promoted_type
    util._rank_promotion_warning_or_error = promote_ranks


def _is_checked() -> bool:
    """Return whether code of this repository called JAX."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(JAX):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(CHECKED)
