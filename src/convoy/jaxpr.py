"""A function of arrays as one flat list of equations, to be rewritten and divided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

Atom = Any  # a `Var` or a `Literal`; JAX does not say that their abstract values are arrays
Values = dict[Var, Any]

# Where the equations of a nested function are. What these add is for gradients and for the
# compiler's own bookkeeping, and without meaning to a program that is only run.
_NESTED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}

# Elements of an array that is worth keeping although it is larger than what it is made from.
_SMALL = 1 << 16


@dataclass(frozen=True)
class Trace:
    """A traced function without nested ones and without what nobody reads."""

    inputs: Sequence[Var]
    outputs: Sequence[Atom]
    equations: Sequence[JaxprEqn]
    constants: Values

    @classmethod
    def of(
        cls,
        function: Callable[..., Sequence[Any]],
        arguments: Sequence[Any],
        axes: Mapping[str, int] = MappingProxyType({}),
    ) -> Trace:
        """Trace a function of flat arguments, given their shapes and types.

        Args:
            function: what to trace.
            arguments: their shapes and types.
            axes: the names and sizes of the mesh axes that it may refer to.
        """
        make = partial(jax.make_jaxpr, axis_env=list(axes.items()))
        nested = make(function)(*arguments)
        flat = make(lambda *values: _inline(nested, values))(*arguments)
        jaxpr = flat.jaxpr
        equations, _ = needed_for(jaxpr.outvars, jaxpr.eqns)
        constants = dict(zip(jaxpr.constvars, flat.consts, strict=True))
        return cls(jaxpr.invars, jaxpr.outvars, equations, constants)

    @property
    def has_effects(self) -> bool:
        return any(equation.effects for equation in self.equations)

    def made_from(self, sources: Collection[Var]) -> set[Var]:
        """Return what can be computed from some inputs alone, and is worth to be kept.

        A value that depends on no input at all is not among them, nor one that is much larger than
        what it is made from: to keep it would cost more than to compute it again.
        """
        found = set(sources)
        free = set(self.constants)
        for equation in self.equations:
            operands = [atom for atom in equation.invars if isinstance(atom, Var)]
            if equation.effects:
                continue
            if all(var in free for var in operands):
                free.update(equation.outvars)
            elif all(var in free or var in found for var in operands) and _worth_keeping(
                equation, [var for var in operands if var in found]
            ):
                found.update(equation.outvars)
        return found


def needed_for(
    outputs: Iterable[Atom], equations: Sequence[JaxprEqn], given: Collection[Var] = ()
) -> tuple[list[JaxprEqn], list[Var]]:
    """Return the equations that outputs depend on, and those of the `given` values they use."""
    # A dictionary as an ordered set: programs come out the same in every process.
    wanted = dict.fromkeys(atom for atom in outputs if isinstance(atom, Var))
    kept: list[JaxprEqn] = []
    for equation in reversed(equations):
        results = [var for var in equation.outvars if var in wanted and var not in given]
        if results or equation.effects:
            kept.append(equation)
            wanted |= dict.fromkeys(atom for atom in equation.invars if isinstance(atom, Var))
    return kept[::-1], [var for var in wanted if var in given]


def evaluate(equations: Iterable[JaxprEqn], values: Values) -> None:
    """Compute equations, in order, and add their results to `values`."""
    for equation in equations:
        bind(equation, [read(atom, values) for atom in equation.invars], values)


def bind(equation: JaxprEqn, operands: Sequence[Any], values: Values) -> None:
    parameters = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager, named(equation):
        results = equation.primitive.bind(*operands, **parameters)
    results = results if equation.primitive.multiple_results else [results]
    values.update(zip(equation.outvars, results, strict=True))


def read(atom: Atom, values: Values) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]


def _inline(closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    jaxpr: Jaxpr = closed.jaxpr
    values = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        operands = [read(atom, values) for atom in equation.invars]
        inner = equation.params.get(_NESTED.get(equation.primitive.name, ""))
        if isinstance(inner, ClosedJaxpr):
            with named(equation):
                results = _inline(inner, operands)
            values.update(zip(equation.outvars, results, strict=True))
        else:
            bind(equation, operands, values)
    return [read(atom, values) for atom in jaxpr.outvars]


def named(equation: JaxprEqn) -> AbstractContextManager[None]:
    """Give what is traced in the block the names of an equation: layers are reported on by them."""
    name = str(equation.source_info.name_stack)
    return jax.named_scope(name) if name else nullcontext()


def _worth_keeping(equation: JaxprEqn, made_from: Iterable[Var]) -> bool:
    if equation.primitive.name == "ffi_call":
        return True  # a packed weight: some layouts fill up blocks
    return _elements(equation.outvars) <= max(_SMALL, _elements(made_from))


def _elements(variables: Iterable[Any]) -> int:
    return sum(prod(var.aval.shape) for var in variables)
