"""Finds convolutions with what follows them in a traced forward pass, and makes one call of each.

Batch normalisation with constant statistics is a product and a sum by channel, which go into the
weights and the bias:

    convolution -> times and plus a value for each channel -> plus an array -> at least zero

Any part may be missing. Each result but the last has only one reader, so nothing is computed twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from convoy.cpu.convolution import ConvolutionParameters
from convoy.cpu.inference import FusedConvolution
from convoy.jaxpr import Atom, Trace, Values, evaluate, named, read
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var


class Kernel(Protocol):
    """What computes a chain."""

    def pack(self, weights: jax.Array) -> jax.Array:
        """Bring weights into the layout that the kernel reads."""

    def __call__(
        self, source: jax.Array, packed: jax.Array, bias: jax.Array, addend: jax.Array | None
    ) -> jax.Array: ...


@dataclass(frozen=True, eq=False)
class Chain:
    """A convolution and the equations after it that one call does as well."""

    convolution: JaxprEqn
    equations: tuple[JaxprEqn, ...]
    by_channel: tuple[tuple[str, Atom], ...] = ()
    addend: Var | None = None
    rectifies: bool = False
    # The padding before the convolution, if it is done by the convolution.
    padding: JaxprEqn | None = None

    @property
    def parameters(self) -> ConvolutionParameters:
        parameters = ConvolutionParameters.of(self.convolution.params)
        return parameters if self.padding is None else _padded(parameters, self.padding)

    @property
    def source(self) -> Any:
        return (self.padding or self.convolution).invars[0]

    @property
    def result(self) -> Var:
        return self.equations[-1].outvars[0]

    def compute(self, kernel: Kernel, values: Values) -> jax.Array:
        weights = read(self.convolution.invars[1], values)
        features = self.parameters.dimension_numbers.rhs_spec[0]
        scale: Any = None
        shift: Any = np.zeros(weights.shape[features], weights.dtype)
        for operation, atom in self.by_channel:
            value = jnp.reshape(read(atom, values), -1)
            if operation == "mul":
                scale = value if scale is None else scale * value
                shift = shift * value
            elif operation == "div":
                scale = 1 / value if scale is None else scale / value
                shift = shift / value
            else:
                shift = shift + value if operation == "add" else shift - value
        if scale is not None:
            shape = [1] * weights.ndim
            shape[features] = scale.size
            weights = weights * scale.reshape(shape)
        addend = None if self.addend is None else values[self.addend]
        return kernel(read(self.source, values), kernel.pack(weights), shift, addend)


FindKernel = Callable[[Chain], Kernel | None]


def fuse(trace: Trace, constants: Collection[Var]) -> Trace:
    """Rewrite a trace so that each chain in it is one call.

    Args:
        trace: a forward pass.
        constants: those of its inputs that stay the same over many calls. Only convolutions with
            weights that follow from these are rewritten.
    """
    return rewrite_chains(trace, constants, _one_call)


def _one_call(chain: Chain) -> FusedConvolution | None:
    weights, (out,) = chain.convolution.invars[1], chain.convolution.outvars
    return FusedConvolution.find(
        chain.source.aval,
        weights.aval,
        out.aval,
        chain.parameters,
        adds=chain.addend is not None,
        rectifies=chain.rectifies,
    )


def rewrite_chains(trace: Trace, constants: Collection[Var], find: FindKernel) -> Trace:
    """Rewrite a trace so that each chain for which `find` has a kernel is computed by that."""
    search = _Search(trace, trace.made_from(constants), find)
    kernels: dict[Chain, Kernel] = {}
    for equation in trace.equations:
        kernels |= search.longest_from(equation)
    ends = {id(chain.equations[-1]): chain for chain in kernels}

    def rewritten(*arguments: Any) -> list[Any]:
        values = trace.constants | dict(zip(trace.inputs, arguments, strict=True))
        for equation in trace.equations:
            if id(equation) in ends:
                chain = ends[id(equation)]
                with named(chain.convolution):
                    values[chain.result] = chain.compute(kernels[chain], values)
            elif id(equation) not in search.taken:
                evaluate([equation], values)
        return [read(atom, values) for atom in trace.outputs]

    return Trace.of(rewritten, [var.aval for var in trace.inputs]) if kernels else trace


class _Search:
    """Who reads and who writes each value of a trace, and which equations are in a chain."""

    def __init__(self, trace: Trace, constant: set[Var], find: FindKernel) -> None:
        self.constant = constant
        self.find = find
        self.taken: set[int] = set()
        self._reads: Counter[Var] = Counter(a for a in trace.outputs if isinstance(a, Var))
        self._reader: dict[Var, JaxprEqn] = {}
        self._writer: dict[Var, JaxprEqn] = {}
        for equation in trace.equations:
            for atom in equation.invars:
                if isinstance(atom, Var):
                    self._reads[atom] += 1
                    self._reader[atom] = equation
            self._writer |= dict.fromkeys(equation.outvars, equation)

    def longest_from(self, equation: JaxprEqn) -> dict[Chain, Kernel]:
        """Find the longest chain from a convolution that there is a kernel for."""
        if equation.primitive is not lax.conv_general_dilated_p:
            return {}
        if equation.invars[1] not in self.constant:
            return {}
        bare = Chain(equation, (equation,))
        for start in (replace(bare, padding=self._padding(equation)), bare):
            for chain in reversed(self._grown(start)):
                kernel = self.find(chain)
                if kernel is not None:
                    self.taken.update(map(id, chain.equations))
                    return {chain: kernel}
        return {}

    def _grown(self, chain: Chain) -> list[Chain]:
        chains = [chain]
        while (longer := self._longer(chains[-1])) is not None:
            chains.append(longer)
        return chains

    def _longer(self, chain: Chain) -> Chain | None:
        tail = chain.result
        equation = self._reader.get(tail)
        if equation is None or self._reads[tail] > 1 or id(equation) in self.taken:
            return None
        if chain.rectifies or not _alike(equation.outvars[0], tail):
            return None
        longer = replace(chain, equations=(*chain.equations, equation))
        operation = equation.primitive.name
        tail_first = equation.invars[0] is tail
        other: Any = equation.invars[1 if tail_first else 0] if len(equation.invars) == 2 else tail
        if operation == "max" and self._is_zero(other):
            return replace(longer, rectifies=True)
        value = self._value_by_channel(other, chain)
        commutes = operation in ("add", "mul") or (operation in ("sub", "div") and tail_first)
        # What has been added already must not be scaled.
        distributes = operation in ("add", "sub") or chain.addend is None
        if value is not None and commutes and distributes:
            return replace(longer, by_channel=(*chain.by_channel, (operation, value)))
        if operation == "add" and chain.addend is None and _alike(other, tail):
            return replace(longer, addend=other)
        return None

    def _value_by_channel(self, atom: Atom, chain: Chain) -> Atom | None:
        """Return what an operand repeats along all axes but the channels', if it is constant."""
        channels = chain.parameters.dimension_numbers.out_spec[1]
        if prod(atom.aval.shape) == 1 and isinstance(atom, Literal):
            return atom
        if isinstance(atom, Literal):
            return None
        if atom in self.constant and _lies_along(atom.aval.shape, range(atom.aval.ndim), channels):
            return atom
        writer = self._writer.get(atom)
        if writer is None or writer.primitive is not lax.broadcast_in_dim_p:
            return None
        small: Any = writer.invars[0]
        axes = writer.params["broadcast_dimensions"]
        if isinstance(small, Var) and small not in self.constant:
            return None
        return small if _lies_along(small.aval.shape, axes, channels) else None

    def _is_zero(self, atom: Atom) -> bool:
        writer = self._writer.get(atom) if isinstance(atom, Var) else None
        if writer is not None and writer.primitive is lax.broadcast_in_dim_p:
            atom = writer.invars[0]
        return isinstance(atom, Literal) and np.shape(atom.val) == () and atom.val == 0

    def _padding(self, convolution: JaxprEqn) -> JaxprEqn | None:
        """Return the equation that puts zeros around a convolution's operand, if there is one."""
        source: Any = convolution.invars[0]
        pad = self._writer.get(source)
        if pad is None or pad.primitive is not lax.pad_p or self._reads[source] > 1:
            return None
        ends = pad.params["padding_config"]
        others = convolution.params["dimension_numbers"].lhs_spec[:2]
        grows_only = all(low >= 0 and high >= 0 and gap == 0 for low, high, gap in ends)
        spatial_only = all(ends[axis] == (0, 0, 0) for axis in others)
        undilated = set(convolution.params["lhs_dilation"]) <= {1}
        zeros = self._is_zero(pad.invars[1])
        return pad if grows_only and spatial_only and undilated and zeros else None


def _padded(parameters: ConvolutionParameters, pad: JaxprEqn) -> ConvolutionParameters:
    axes = parameters.dimension_numbers.lhs_spec[2:]
    ends = [pad.params["padding_config"][axis] for axis in axes]
    padding = tuple(
        (low + more_low, high + more_high)
        for (low, high), (more_low, more_high, _) in zip(parameters.padding, ends, strict=True)
    )
    return replace(parameters, padding=padding)


def _lies_along(shape: Sequence[int], axes: Sequence[int], channels: int) -> bool:
    return all(size == 1 or axis == channels for size, axis in zip(shape, axes, strict=True))


def _alike(atom: Atom, other: Any) -> bool:
    is_array = isinstance(atom, Var)
    same = atom.aval.shape == other.aval.shape and atom.aval.dtype == other.aval.dtype
    return is_array and atom is not other and same
