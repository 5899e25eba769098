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


Rewrite = Callable[[Trace, Collection[Var]], Trace]
"""Optimises a trace; its second argument is the inputs that are weights."""


def depending_on(sources: Collection[Var], equations: Iterable[JaxprEqn]) -> set[Var]:
    """Return some values, and all values that equations compute from them."""
    found = set(sources)
    for equation in equations:
        if any(isinstance(atom, Var) and atom in found for atom in equation.invars):
            found.update(equation.outvars)
    return found


def needed_for(
    outputs: Iterable[Atom], equations: Sequence[JaxprEqn], given: Collection[Var] = ()
) -> tuple[list[JaxprEqn], list[Var]]:
    """Return the equations that outputs depend on, and the `given` values that they use."""
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
    return sum(prod(_shape(var)) for var in variables)


def nested_jaxprs(equation: JaxprEqn) -> list[Jaxpr]:
    """Return the jaxprs in the parameters of an equation, such as the body of a loop."""
    values = jax.tree.leaves(list(equation.params.values()))
    found = [value for value in values if isinstance(value, (ClosedJaxpr, Jaxpr))]
    return [value.jaxpr if isinstance(value, ClosedJaxpr) else value for value in found]


def count_flops(program: ClosedJaxpr, devices: int = 1) -> float:
    """Return the multiplications and additions of convolutions and matrix products on one device.

    They are those of the traced program, before any compiler changes it. A loop with a known number
    of iterations is counted that many times. The device loop, whose number of iterations is an
    argument, is counted once.

    Args:
        program: the traced program.
        devices: number of devices over which XLA divides what is not divided explicitly.
    """
    return _jaxpr_flops(program.jaxpr, 1 / devices)


def _jaxpr_flops(jaxpr: Jaxpr, share: float) -> float:
    return sum(_equation_flops(equation, share) for equation in jaxpr.eqns)


def _equation_flops(equation: JaxprEqn, share: float) -> float:
    name = equation.primitive.name
    if name == "dot_general":
        return share * _dot_flops(equation)
    if name == "conv_general_dilated":
        return share * _convolution_flops(equation)
    # Inside of a `shard_map`, shapes are those of one device.
    inner_share = 1.0 if name == "shard_map" else share
    inner = [_jaxpr_flops(jaxpr, inner_share) for jaxpr in nested_jaxprs(equation)]
    if name == "cond":
        return max(inner)
    return sum(inner) * (equation.params["length"] if name == "scan" else 1)


def _dot_flops(equation: JaxprEqn) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, result = _shape(equation.invars[0]), _shape(equation.outvars[0])
    return 2.0 * prod(result) * prod(left[axis] for axis in contracted)


def _convolution_flops(equation: JaxprEqn) -> float:
    parameters = equation.params
    kernel, result = _shape(equation.invars[1]), _shape(equation.outvars[0])
    out_features = kernel[parameters["dimension_numbers"].rhs_spec[0]]
    # The zeros between the elements of a dilated input are not multiplied.
    dilation = prod(parameters["lhs_dilation"])
    return 2.0 * prod(result) * prod(kernel) / out_features / dilation


def _shape(atom: Atom) -> tuple[int, ...]:
    return atom.aval.shape
