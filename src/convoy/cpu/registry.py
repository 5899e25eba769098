"""Turning the CPU kernels on and off."""

import os

import jax
from convoy.cpu import convolution_rule, library, lowering, pooling_rule
from convoy.cpu.status import Status, read
from jax import lax
from jax.extend.core import Primitive

VARIABLE = "CONVOY_CPU_KERNELS"

RULES: dict[Primitive, lowering.Rule] = {
    lax.conv_general_dilated_p: convolution_rule.lower,
    lax.reduce_window_max_p: pooling_rule.lower_max,
    lax.reduce_window_sum_p: pooling_rule.lower_sum,
    lax.select_and_scatter_add_p: pooling_rule.lower_max_gradient,
}

_active = False
_was_active = False


def enable() -> None:
    """Lower convolutions and poolings to the CPU kernels from now on.

    Importing Convoy does this. It does nothing where the variable `CONVOY_CPU_KERNELS` is `0`.
    Programs compiled before the first call keep the form they have; every later change of state
    drops the programs compiled so far, so that it reaches all of them.
    """
    global _active, _was_active
    if _active or _forbidden():
        return
    for primitive, rule in RULES.items():
        lowering.install(primitive, rule)
    if _was_active:
        jax.clear_caches()
    _active = _was_active = True


def disable() -> None:
    """Give every operation back to JAX's own lowering, and drop the programs compiled so far."""
    global _active
    if not _active:
        return
    lowering.remove_all()
    jax.clear_caches()
    _active = False


def fuses(platform: str) -> bool:
    """Say whether models that run on a platform are to be traced with a `Fusion`."""
    return _active and platform == "cpu" and library.find() is not None


def status() -> Status:
    """Say what the CPU kernels do in this process, or why they do not."""
    if _forbidden():
        return read(active=False, why_not=f"{VARIABLE}=0 is set")
    return read(active=_active, why_not="convoy.cpu.enable() was not called")


def _forbidden() -> bool:
    return os.environ.get(VARIABLE, "").strip().lower() in ("0", "false", "off", "no")
