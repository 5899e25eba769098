"""Flat traces of functions: lists of JAX's equations that can be rewritten and divided.

JAX keeps a jitted or differentiated function as one equation with an inner jaxpr. `Trace` inlines
these, so that one list holds every operation:

    y = jit(relu)(sin(x)) + 1        sin x -> a;  max a 0 -> b;  add b 1 -> y
"""

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

# The parameter that holds the inner jaxpr of a nested function. What these primitives add (rules
# for gradients, boundaries of compilation) has no meaning in a program that is only run.
_NESTED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}

# Number of elements up to which an array is kept although it is larger than its sources.
_SMALL = 1 << 16


@dataclass(frozen=True)
class Trace:
    """A traced function without nested functions and without unused equations."""

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
        """Trace a function of flat arguments.

        Args:
            function: function to trace.
            arguments: shapes and types of its arguments.
            axes: names and sizes of the mesh axes that it may refer to.
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
        """Return the values that depend on some inputs alone and are worth keeping.

        Excluded are values that depend on no input at all, and values that are much larger than
        their sources: keeping them costs more than computing them again.
        """
        found = set(sources)
        free = set(self.constants)  # values that depend on no input
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
    # A dict as an ordered set: every process must get the same program.
    wanted = dict.fromkeys(atom for atom in outputs if isinstance(atom, Var))
    kept: list[JaxprEqn] = []
    for equation in reversed(equations):
        results = [var for var in equation.outvars if var in wanted and var not in given]
        if results or equation.effects:
            kept.append(equation)
            wanted |= dict.fromkeys(atom for atom in equation.invars if isinstance(atom, Var))
    return kept[::-1], [var for var in wanted if var in given]


def evaluate(equations: Iterable[JaxprEqn], values: Values) -> None:
    """Evaluate equations in order, and add their results to `values`."""
    for equation in equations:
        bind(equation, [read(atom, values) for atom in equation.invars], values)


def bind(equation: JaxprEqn, operands: Sequence[Any], values: Values) -> None:
    """Evaluate one equation on operands, and add its results to `values`."""
    parameters = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager, named(equation):
        results = equation.primitive.bind(*operands, **parameters)
    results = results if equation.primitive.multiple_results else [results]
    values.update(zip(equation.outvars, results, strict=True))


def read(atom: Atom, values: Values) -> Any:
    """Return the value of a literal or a variable."""
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
    """Apply the name scopes of an equation to the block; reports find layers by them."""
    name = str(equation.source_info.name_stack)
    return jax.named_scope(name) if name else nullcontext()


def _worth_keeping(equation: JaxprEqn, made_from: Iterable[Var]) -> bool:
    if equation.primitive.name == "ffi_call":
        return True  # a packed weight, which some layouts pad to whole blocks
    return _elements(equation.outvars) <= max(_SMALL, _elements(made_from))


def _elements(variables: Iterable[Any]) -> int:
    return sum(prod(var.aval.shape) for var in variables)
