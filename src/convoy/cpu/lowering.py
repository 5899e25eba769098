"""Which lowering rule JAX uses on a CPU, and how to give it back.

The only file here that reaches past JAX's documented API: JAX can register a lowering rule but
neither return the one in force nor take one back, so `jax.interpreters.mlir`'s tables are read.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

Rule = Callable[..., Sequence[Any]]

_replaced: dict[Primitive, Rule] = {}


def install(primitive: Primitive, rule: Rule) -> None:
    """Lower `primitive` by `rule` on CPUs, until `remove_all`."""
    entry = _entry_in_force(primitive)
    if primitive not in _replaced:
        _replaced[primitive] = entry.rule
    mlir.register_lowering(primitive, rule, platform="cpu", inline=entry.inline)


def remove_all() -> None:
    """Restore what `install` replaced."""
    for primitive, rule in _replaced.items():
        mlir.register_lowering(
            primitive, rule, platform="cpu", inline=_entry_in_force(primitive).inline
        )
    _replaced.clear()


def jax_rule(primitive: Primitive) -> Rule:
    """JAX's own CPU rule for `primitive`, whether or not it is the one in force."""
    return _replaced.get(primitive) or _entry_in_force(primitive).rule


def _entry_in_force(primitive: Primitive) -> Any:
    return mlir._platform_specific_lowerings["cpu"].get(primitive) or mlir._lowerings[primitive]
