"""Where the program being lowered will run, as far as a kernel must know."""

from typing import Any

from jax.core import AbstractValue, ShapedArray
from jax.interpreters import mlir


def arrays(*avals: AbstractValue) -> list[ShapedArray]:
    """Return `avals`, which are all arrays."""
    assert all(isinstance(aval, ShapedArray) for aval in avals)
    return list(avals)  # type: ignore[arg-type]


def must_be_portable(ctx: mlir.LoweringRuleContext) -> bool:
    """Say whether the program leaves this process or has sizes that are not yet known."""
    sizes = (size for aval in arrays(*ctx.avals_in, *ctx.avals_out) for size in aval.shape)
    exported = ctx.module_context.lowering_parameters.for_export
    return exported or not all(isinstance(size, int) for size in sizes)


def is_on_one_device(ctx: mlir.LoweringRuleContext) -> bool:
    """Say whether every array here lies on one device as a whole.

    XLA can divide its own operations over devices but not a foreign call: that one it would hand
    the gathered arrays on every device. Inside `shard_map` the division is already done.
    """
    axis_context: Any = ctx.module_context.axis_context
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return axis_context.manual_axes == frozenset(axis_context.mesh.axis_names)
    if isinstance(axis_context, mlir.ShardingContext):
        return axis_context.num_devices == 1
    return False
