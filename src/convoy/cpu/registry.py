"""Enabling and disabling the CPU kernels, and their status in this process."""

from dataclasses import dataclass, field

import jax
from convoy.cpu import (
    channel_sums,
    convolution_lowering,
    library,
    lowering,
    matrix_product,
    pooling,
    threads,
)
from convoy.cpu.kernel_dtypes import INSTRUCTIONS
from convoy.environment import is_off
from jax import lax
from jax.extend.core import Primitive

VARIABLE = "CONVOY_CPU_KERNELS"

# Batch normalisation is not here: JAX has no primitive for it, so `Fusion` replaces it in Keras.
RULES: dict[Primitive, lowering.Rule] = {
    lax.conv_general_dilated_p: convolution_lowering.lower,
    lax.dot_general_p: matrix_product.lower,
    lax.reduce_window_max_p: pooling.lower_max,
    lax.reduce_window_sum_p: pooling.lower_sum,
    lax.select_and_scatter_add_p: pooling.lower_max_gradient,
    lax.reduce_sum_p: channel_sums.lower,
}

# JAX caches lowered programs by function and shapes, but not by the rules in force. After a change
# of the rules, two calls of one function could therefore differ, so the caches are cleared. Only
# the first `enable` does not clear them: no program of Convoy is cached yet, and other programs
# need not be compiled again just because Convoy was imported.
_active = False
_was_active = False


@dataclass(frozen=True)
class Status:
    """State of the CPU kernels in this process.

    Attributes:
        active: whether operations are lowered by Convoy's rules.
        native: whether the native kernels run them, and not XLA in its fast layout.
        why_not: reason for not being active or native; empty if both hold.
        onednn: version of oneDNN; empty without the native library.
        instruction_set: instructions that oneDNN may use; empty without the native library.
        half_instructions: 16-bit types that this CPU has instructions for; kernels compute with
            the others in float32.
        cores: number of cores that the CPU devices of the process share.
        lowered: number of operations that each kernel was chosen for.
    """

    active: bool
    native: bool
    why_not: str = ""
    onednn: str = ""
    instruction_set: str = ""
    half_instructions: tuple[str, ...] = ()
    cores: int = 0
    lowered: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.active:
            return f"CPU kernels: off ({self.why_not})"
        if self.native:
            head = f"CPU kernels: oneDNN {self.onednn} with {self.instruction_set}"
            head += f", {self.cores} core(s) shared by the devices"
        else:
            head = f"CPU kernels: XLA's own, in its fast layout ({self.why_not})"
        return "\n".join([head, *(f"  {kernel}: {n}" for kernel, n in self.lowered.items())])


def enable() -> None:
    """Lower convolutions, poolings and sums by channel to the CPU kernels from now on.

    Importing Convoy does this. It does nothing if the variable `CONVOY_CPU_KERNELS` is `0`.
    Programs that were compiled before the first call stay as they are; every later change drops all
    compiled programs, so that it takes effect everywhere.
    """
    global _active, _was_active
    if _active or is_off(VARIABLE):
        return
    for primitive, rule in RULES.items():
        lowering.install(primitive, rule)
    if _was_active:
        jax.clear_caches()
    _active = _was_active = True


def disable() -> None:
    """Restore JAX's own lowering of every operation, and drop the compiled programs."""
    global _active
    if not _active:
        return
    lowering.remove_all()
    jax.clear_caches()
    _active = False


def fuses(platform: str) -> bool:
    """Return whether models that run on a platform are traced with a `Fusion`."""
    return _active and platform == "cpu" and library.find() is not None


def status() -> Status:
    """Return what the CPU kernels do in this process, or why they do not run."""
    lowered, cores = lowering.counts(), threads.cores()
    if not _active or is_off(VARIABLE):
        off, never = f"{VARIABLE}=0 is set", "convoy.cpu.enable() was not called"
        why_not = off if is_off(VARIABLE) else never
        return Status(False, False, why_not, cores=cores, lowered=lowered)
    try:
        kernels = library.load()
    except library.Unavailable as reason:
        return Status(True, False, str(reason), cores=cores, lowered=lowered)
    return Status(
        active=True,
        native=True,
        onednn=kernels.onednn_version,
        instruction_set=kernels.instruction_set,
        half_instructions=tuple(
            dtype for dtype, needed in INSTRUCTIONS.items() if needed in kernels.features
        ),
        cores=cores,
        lowered=lowered,
    )
