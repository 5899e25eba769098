"""JAX's lowering rules on CPUs: replacing them, and what a rule needs to know about a program.

The only module of this package that uses undocumented parts of JAX. JAX can register a lowering
rule, but can neither return the rule in force nor remove one, so the tables of
`jax.interpreters.mlir` are read.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeAlias

from jax.core import AbstractValue, ShapedArray
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import mlir

Value: TypeAlias = ir.Value
Results: TypeAlias = Sequence[Value | Sequence[Value]]
Rule = Callable[..., Results]

# Other packages may have replaced a rule before. The rule that was in force when ours was installed
# is the one that ours falls back to, and the one that is restored. A rule is looked up first in the
# table of the platform and then in that of all platforms, as JAX itself does.
_replaced: dict[Primitive, Rule] = {}


def install(primitive: Primitive, rule: Rule) -> None:
    """Lower `primitive` by `rule` on CPUs, until `remove_all`."""
    entry = _entry_in_force(primitive)
    _replaced.setdefault(primitive, entry.rule)
    mlir.register_lowering(primitive, rule, platform="cpu", inline=entry.inline)


def remove_all() -> None:
    """Restore the rules that `install` replaced."""
    for primitive, rule in _replaced.items():
        inline = _entry_in_force(primitive).inline
        mlir.register_lowering(primitive, rule, platform="cpu", inline=inline)
    _replaced.clear()


def jax_rule(primitive: Primitive) -> Rule:
    """Return JAX's own CPU rule for `primitive`, whether or not it is in force."""
    return _replaced.get(primitive) or _entry_in_force(primitive).rule


def _entry_in_force(primitive: Primitive) -> Any:
    return mlir._platform_specific_lowerings["cpu"].get(primitive) or mlir._lowerings[primitive]


def arrays(*avals: AbstractValue) -> list[ShapedArray]:
    """Return abstract values that are all arrays, with their type."""
    assert all(isinstance(aval, ShapedArray) for aval in avals)
    return list(avals)  # type: ignore[arg-type]


def must_be_portable(ctx: mlir.LoweringRuleContext) -> bool:
    """Return whether the program is exported, or has sizes that are not known yet."""
    sizes = (size for aval in arrays(*ctx.avals_in, *ctx.avals_out) for size in aval.shape)
    exported = ctx.module_context.lowering_parameters.for_export
    return exported or not all(isinstance(size, int) for size in sizes)


def is_on_one_device(ctx: mlir.LoweringRuleContext) -> bool:
    """Return whether every array of the operation lies entirely on one device.

    XLA partitions its own operations over devices, but not a foreign call, whose operands it would
    gather on every device. Inside of `shard_map`, arrays are partitioned already.
    """
    axis_context: object = ctx.module_context.axis_context
    if isinstance(axis_context, mlir.SPMDAxisContext):
        return axis_context.manual_axes == frozenset(axis_context.mesh.axis_names)
    if isinstance(axis_context, mlir.ShardingContext):
        return axis_context.num_devices == 1
    return False


# Programs are lowered by several threads at once: those of a user, and those of a server.
_lock = Lock()
_lowered: Counter[str] = Counter()


def count(kernel: str) -> None:
    """Count an operation that a kernel was chosen for, for `convoy.cpu.status()`."""
    with _lock:
        _lowered[kernel] += 1


def counts() -> dict[str, int]:
    """Return the number of operations that each kernel was chosen for, by name."""
    with _lock:
        return dict(sorted(_lowered.items()))


def reset_counts() -> None:
    with _lock:
        _lowered.clear()
