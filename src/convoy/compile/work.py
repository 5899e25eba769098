"""Floating-point operations of a traced program, counted before any compiler changes it."""

from __future__ import annotations

from math import prod
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


def count_flops(program: ClosedJaxpr, devices: int) -> float:
    """Return the multiplications and additions of convolutions and matrix products on one device.

    A loop with a known number of iterations is counted that many times. The device loop, whose
    number of iterations is an argument, is counted once.

    Args:
        program: the traced program.
        devices: number of devices over which XLA divides what is not divided explicitly.
    """
    return _count(program.jaxpr, 1 / devices)


def _count(jaxpr: Jaxpr, share: float) -> float:
    return sum(_equation_flops(equation, share) for equation in jaxpr.eqns)


def _equation_flops(equation: JaxprEqn, share: float) -> float:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        return share * _dot_flops(equation)
    if name == "conv_general_dilated":
        return share * _convolution_flops(equation)
    if name == "shard_map":
        # Inside of it, shapes are those of one device.
        return _count(_jaxpr(parameters["jaxpr"]), 1)
    if name == "scan":
        return parameters["length"] * _count(_jaxpr(parameters["jaxpr"]), share)
    if name == "cond":
        return max(_count(_jaxpr(branch), share) for branch in parameters["branches"])
    inner = [value for value in parameters.values() if isinstance(value, (ClosedJaxpr, Jaxpr))]
    return sum(_count(_jaxpr(value), share) for value in inner)


def _jaxpr(value: Any) -> Jaxpr:
    return value.jaxpr if isinstance(value, ClosedJaxpr) else value


def _dot_flops(equation: JaxprEqn) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape  # type: ignore[attr-defined]
    result = equation.outvars[0].aval.shape  # type: ignore[attr-defined]
    return 2.0 * prod(result) * prod(left[axis] for axis in contracted)


def _convolution_flops(equation: JaxprEqn) -> float:
    parameters = equation.params
    kernel = equation.invars[1].aval.shape  # type: ignore[attr-defined]
    result = equation.outvars[0].aval.shape  # type: ignore[attr-defined]
    out_features = kernel[parameters["dimension_numbers"].rhs_spec[0]]
    # The zeros between the elements of a dilated input are not multiplied.
    dilation = prod(parameters["lhs_dilation"])
    return 2.0 * prod(result) * prod(kernel) / out_features / dilation
