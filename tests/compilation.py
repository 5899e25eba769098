"""Quicker compilation of programs in tests for which speed and rounding do not matter.

Most of the time of the tests goes into XLA's code generation. Without LLVM's optimizations and
XLA's fusion emitters, a program is compiled in a third of the time. It has the same operations and
types, but it is slower, and may be rounded otherwise.
"""

import os

import jax
from jax._src import compiler

# Folders whose tests look at something else than speed and rounding. All others are compiled as for
# users: comparisons with stock Keras in `equivalence`, kernels, engine, pipelines and checkpoints.
FOLDERS = frozenset({"estimator", "examples", "ipu", "report", "train"})
OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
_FLAGS = "XLA_FLAGS"
_GIVEN = os.environ.get(_FLAGS, "")

_is_quick = False


def enable() -> None:
    """Let `set_quick` decide from now on; JAX has no option for it that can change in a process."""
    get_options = compiler.get_compile_options

    def get_test_options(*args, **kwargs):
        options = get_options(*args, **kwargs)
        if _is_quick:
            options.env_option_overrides = [*options.env_option_overrides, *OPTIONS.items()]
        return options

    compiler.get_compile_options = get_test_options


def set_quick(is_quick: bool) -> None:
    """Compile quickly or as users do, in this process and in those that it starts."""
    global _is_quick
    if is_quick == _is_quick:
        return
    _is_quick = is_quick
    added = [f"--{name}={int(value)}" for name, value in OPTIONS.items()] if is_quick else []
    os.environ[_FLAGS] = " ".join([_GIVEN, *added])
    # JAX would go on with the programs of its own functions that it has compiled.
    jax.clear_caches()
