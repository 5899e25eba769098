"""Fusion of convolutions with the operations that follow them, in a traced forward pass."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from convoy.cpu.convolution import ConvolutionParameters
from convoy.cpu.fused_convolution import FoldedConvolution, FusedConvolution
from convoy.cpu.kernel_dtypes import FOLDED, KERNELS, CpuFeature
from convoy.jaxpr import Atom, Trace, Values, evaluate, named, read
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var

# At inference, batch normalisation has constant statistics: it is a product and a sum by channel.
# The products are multiplied into the weights, and the sums become a bias. A chain of equations
#
#     pad -> convolution -> [mul | div | add | sub by channel]* -> add array -> max with 0
#     ^^^                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^     ^^^^^^^^^    ^^^^^^^^^^
#     padding               by_channel                             addend       relu
#
# becomes one call of a kernel. Each part but the convolution may be missing. Each result but the
# last has one reader only, so nothing is computed twice.
#
# In 16 bits Keras casts to float32 before a batch normalisation and back after it. The kernel
# computes in float32 from the convolution on and rounds the last result, so casts in the chain are
# left out. The products are an operand of the kernel: in the weights they would be rounded.


Kernel = FusedConvolution | FoldedConvolution
"""A kernel that computes a chain."""


@dataclass(frozen=True, eq=False)
class Chain:
    """A convolution and the equations that are computed in the same call.

    Attributes:
        convolution: the convolution's equation.
        equations: the convolution and those after it, in order.
        by_channel: operations with a value for each channel, in order.
        addend: array that is added to the result.
        relu: whether the chain ends with a ReLU.
        padding: equation that pads the convolution's operand, if the kernel does it instead.
    """

    convolution: JaxprEqn
    equations: tuple[JaxprEqn, ...]
    by_channel: tuple[tuple[str, Atom], ...] = ()
    addend: Var | None = None
    relu: bool = False
    padding: JaxprEqn | None = None

    @property
    def parameters(self) -> ConvolutionParameters:
        parameters = ConvolutionParameters.of(self.convolution.params)
        return parameters if self.padding is None else _padded(parameters, self.padding)

    @property
    def source(self) -> Atom:
        return (self.padding or self.convolution).invars[0]

    @property
    def result(self) -> Var:
        return self.equations[-1].outvars[0]

    def compute(self, kernel: Kernel, values: Values) -> jax.Array:
        weights = read(self.convolution.invars[1], values)
        features = self.parameters.dimension_numbers.rhs_spec[0]
        # The result so far is always `convolution * scale + shift`.
        scale: Any = None
        shift: Any = np.zeros(weights.shape[features], np.float32)
        for operation, atom in self.by_channel:
            value = jnp.reshape(read(atom, values), -1).astype(jnp.float32)
            if operation == "mul":
                scale = value if scale is None else scale * value
                shift = shift * value
            elif operation == "div":
                scale = 1 / value if scale is None else scale / value
                shift = shift / value
            else:
                shift = shift + value if operation == "add" else shift - value
        if scale is not None and weights.dtype == jnp.float32:
            shape = [1] * weights.ndim
            shape[features] = scale.size
            weights, scale = weights * scale.reshape(shape), None
        elif scale is not None:
            scale = jnp.broadcast_to(scale, shift.shape)
        addend = None if self.addend is None else values[self.addend]
        return kernel(read(self.source, values), kernel.pack(weights), scale, shift, addend)


FindKernel = Callable[[Chain], Kernel | None]


def fuse(trace: Trace, constants: Collection[Var]) -> Trace:
    """Replace each chain of a trace that has a native kernel by one call.

    Args:
        trace: a forward pass.
        constants: inputs that stay the same over many calls. Only convolutions whose weights depend
            on these alone are replaced.
    """
    return _rewrite_chains(trace, constants, _find_fused)


def _find_fused(chain: Chain) -> FusedConvolution | None:
    weights: Atom
    out: Atom
    result: Atom = chain.result
    (_, weights), (out,) = chain.convolution.invars, chain.convolution.outvars
    if result.aval.dtype != out.aval.dtype:
        return None
    return FusedConvolution.find(
        chain.source.aval,
        weights.aval,
        out.aval,
        chain.parameters,
        adds=chain.addend is not None,
        relu=chain.relu,
    )


def fold(trace: Trace, constants: Collection[Var]) -> Trace:
    """Multiply the factors by channel that follow a convolution into its weights.

    Args:
        trace: a forward pass.
        constants: inputs that stay the same over many calls.
    """
    return _rewrite_chains(trace, constants, _find_folded)


def _find_folded(chain: Chain) -> FoldedConvolution | None:
    scales = any(operation in ("mul", "div") for operation, _ in chain.by_channel)
    out: Atom = chain.convolution.outvars[0]
    if not scales or not KERNELS[FOLDED].takes(CpuFeature.NONE, out.aval):
        return None
    return FoldedConvolution(chain.parameters, chain.relu)


def _rewrite_chains(trace: Trace, constants: Collection[Var], find: FindKernel) -> Trace:
    """Replace each chain of a trace for which `find` returns a kernel by a call of it."""
    search = _Search(trace, trace.made_from(constants), find)
    kernels: dict[Chain, Kernel] = {}
    for equation in trace.equations:
        kernels |= search.longest_from(equation)
    # A chain is computed where its last equation was: all its operands are known there. The other
    # equations are left out. Equations have no value equality, so they are identified by `id`.
    ends = {id(chain.equations[-1]): chain for chain in kernels}

    def rewritten(*arguments: jax.Array) -> list[jax.Array]:
        values = trace.constants | dict(zip(trace.inputs, arguments, strict=True))
        for equation in trace.equations:
            if id(equation) in ends:
                chain = ends[id(equation)]
                with named(chain.convolution):
                    values[chain.result] = chain.compute(kernels[chain], values)
            elif id(equation) not in search.taken:
                evaluate([equation], values)
        return [read(atom, values) for atom in trace.outputs]

    # A padding that a kernel does instead has no reader left: tracing again drops it.
    return Trace.of(rewritten, [var.aval for var in trace.inputs]) if kernels else trace


class _Search:
    """Readers and writers of the values of a trace, and the equations that are in a chain."""

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
        """Find the longest chain from a convolution that has a kernel."""
        if equation.primitive is not lax.conv_general_dilated_p:
            return {}
        if equation.invars[1] not in self.constant:
            return {}
        bare = Chain(equation, (equation,))
        # Chains that begin with the padding come first, and longer chains before shorter ones.
        for start in (replace(bare, padding=self._padding(equation)), bare):
            for chain in reversed(self._grown(start)):
                kernel = self.find(chain)
                if kernel is not None:
                    self.taken.update(map(id, chain.equations))
                    return {chain: kernel}
        return {}

    def _grown(self, chain: Chain) -> list[Chain]:
        """Return a chain and all longer ones, each one equation longer than the one before."""
        chains = [chain]
        while (longer := self._longer(chains[-1])) is not None:
            chains.append(longer)
        return chains

    def _longer(self, chain: Chain) -> Chain | None:
        """Return the chain with the equation that reads its result, if that belongs to it."""
        result: Any = chain.result
        equation = self._reader.get(result)
        if equation is None or self._reads[result] > 1 or id(equation) in self.taken:
            return None
        longer = replace(chain, equations=(*chain.equations, equation))
        if _is_inner_cast(equation, chain):
            return longer
        if chain.relu or not _alike(equation.outvars[0], result):
            return None
        operation = equation.primitive.name
        result_first = equation.invars[0] is result
        other: Atom = (
            equation.invars[1 if result_first else 0] if len(equation.invars) == 2 else result
        )
        if operation == "max" and self._is_zero(other):
            return replace(longer, relu=True)
        value = self._value_by_channel(other, chain)
        # `value - result` and `value / result` are not of the form `result * scale + shift`.
        linear = operation in ("add", "mul") or (operation in ("sub", "div") and result_first)
        # The kernel adds the addend last, so nothing may be scaled after it.
        keeps_order = operation in ("add", "sub") or chain.addend is None
        if value is not None and linear and keeps_order:
            return replace(longer, by_channel=(*chain.by_channel, (operation, value)))
        # The kernel reads an addend of the convolution's type, not float32 between two casts.
        convolved: Atom = chain.convolution.outvars[0]
        is_addend = _alike(other, result) and result.aval.dtype == convolved.aval.dtype
        if operation == "add" and chain.addend is None and is_addend:
            return replace(longer, addend=other)
        return None

    def _value_by_channel(self, atom: Atom, chain: Chain) -> Atom | None:
        """Return the constant that an operand repeats along all axes but the channels'."""
        channels = chain.parameters.dimension_numbers.out_spec[1]
        if isinstance(atom, Literal):
            return atom if np.size(atom.val) == 1 else None
        if atom in self.constant and _lies_along(atom.aval.shape, range(atom.aval.ndim), channels):
            return atom
        # Keras reshapes vectors to (1, 1, 1, channels), which JAX then broadcasts.
        writer = self._writer.get(atom)
        if writer is None or writer.primitive is not lax.broadcast_in_dim_p:
            return None
        small: Atom = writer.invars[0]
        if not isinstance(small, Literal) and small not in self.constant:
            return None
        axes = writer.params["broadcast_dimensions"]
        return small if _lies_along(small.aval.shape, axes, channels) else None

    def _is_zero(self, atom: Atom) -> bool:
        writer = self._writer.get(atom) if isinstance(atom, Var) else None
        if writer is not None and writer.primitive is lax.broadcast_in_dim_p:
            atom = writer.invars[0]
        return isinstance(atom, Literal) and np.shape(atom.val) == () and atom.val == 0

    def _padding(self, convolution: JaxprEqn) -> JaxprEqn | None:
        """Return the equation that pads a convolution's operand with zeros, if there is one."""
        source: Atom = convolution.invars[0]
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


def _is_inner_cast(equation: JaxprEqn, chain: Chain) -> bool:
    """Return whether an equation casts a 16-bit convolution to float32, or back."""
    result: Atom = equation.outvars[0]
    convolution: Atom = chain.convolution.outvars[0]
    types = (jnp.dtype(jnp.float32), convolution.aval.dtype)
    return (
        equation.primitive is lax.convert_element_type_p
        and convolution.aval.dtype.itemsize < 4
        and result.aval.dtype in types
        and not chain.relu
    )


def _lies_along(shape: Sequence[int], axes: Sequence[int], channels: int) -> bool:
    return all(size == 1 or axis == channels for size, axis in zip(shape, axes, strict=True))


def _alike(atom: Atom, other: Atom) -> bool:
    """Return whether two values are different arrays of the same shape and type."""
    is_array = isinstance(atom, Var)
    same = atom.aval.shape == other.aval.shape and atom.aval.dtype == other.aval.dtype
    return is_array and atom is not other and same
