"""A model's forward pass at one size of batch, divided for serving.

What follows from the weights alone, folded and packed weights above all, is computed once. The rest
is a function of these values and of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import keras
import numpy as np
from convoy.jaxpr import Trace, evaluate, needed_for, read
from convoy.serving.signature import Signature, Tensor
from jax.extend.core import Var

Rewrite = Callable[[Trace, Collection[Var]], Trace]


class Forward:
    """A forward pass without training.

    Args:
        model: a functional or sequential model.
        size: of the batch.
        rewrite: is given the trace of the forward pass, and those of its inputs that are weights.

    Attributes:
        constants: what `run` takes first.
        needed: the variables that stand for these.
        inputs: the variables that stand for the inputs.
        equations: what computes the outputs from them.
        trace: all of it, with what follows from weights alone.
    """

    def __init__(self, model: keras.Model, size: int, rewrite: Rewrite) -> None:
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        split, count = len(model.trainable_variables), len(variables)
        structure = jax.tree.structure(input_structure(model))

        def flat(*values: Any) -> list[Any]:
            x = jax.tree.unflatten(structure, values[count:])
            outputs, _ = model.stateless_call(
                list(values[:split]), list(values[split:count]), x, training=False
            )
            return jax.tree.leaves(outputs)

        weights = [variable.value for variable in variables]
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in weights]
        shapes += input_shapes(input_tensors(model), size)
        trace = Trace.of(flat, shapes)
        if trace.has_effects:
            raise ValueError(f"{model.name!r} has effects, which cannot be served.")
        trace = rewrite(trace, trace.inputs[:count])
        given = trace.inputs[:count]
        self.trace = trace
        self.inputs = trace.inputs[count:]
        self.equations, self.needed = needed_for(
            trace.outputs, trace.equations, trace.made_from(given)
        )
        self.constants = self._prepare(dict(zip(given, weights, strict=True)))
        self.input_shapes = shapes[count:]
        self.output_shapes = [
            jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in trace.outputs
        ]

    def _prepare(self, weights: dict[Var, Any]) -> list[jax.Array]:
        computed = [var for var in self.needed if var not in weights]
        early, sources = needed_for(computed, self.trace.equations, weights)

        def compute(values: Sequence[Any]) -> list[Any]:
            found = self.trace.constants | dict(zip(sources, values, strict=True))
            evaluate(early, found)
            return [found[var] for var in computed]

        made = jax.jit(compute)([weights[var] for var in sources]) if computed else []
        known = weights | dict(zip(computed, made, strict=True))
        return [known[var] for var in self.needed]

    def run(self, constants: Sequence[Any], *inputs: Any) -> list[Any]:
        """Compute the outputs; to be compiled."""
        values = dict(self.trace.constants)
        values.update(zip(self.needed, constants, strict=True))
        values.update(zip(self.inputs, inputs, strict=True))
        evaluate(self.equations, values)
        return [read(atom, values) for atom in self.trace.outputs]


def input_structure(model: keras.Model) -> Any:
    """Return a model's symbolic inputs, nested as it takes them."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def output_structure(model: keras.Model) -> Any:
    return model.outputs[0] if isinstance(model, keras.Sequential) else model.output


def input_tensors(model: keras.Model) -> tuple[Tensor, ...]:
    """Describe a model's inputs.

    Raises:
        ValueError: if one has a size that is not known.
    """
    tensors = []
    for leaf in jax.tree.leaves(input_structure(model)):
        if any(size is None for size in leaf.shape[1:]):
            raise ValueError(
                f"Input {leaf.name!r} has the shape {tuple(leaf.shape)}. Only the first size, the "
                "batch, may be open: give the model a keras.Input with all others."
            )
        tensors.append(Tensor(leaf.name, leaf.dtype, tuple(leaf.shape[1:])))
    return tuple(tensors)


def input_shapes(tensors: Sequence[Tensor], size: int) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct((size, *tensor.shape), tensor.numpy_dtype) for tensor in tensors]


def describe_outputs(forward: Forward, names: Sequence[str]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name, np.dtype(shape.dtype).name, tuple(shape.shape[1:]))
        for name, shape in zip(names, forward.output_shapes, strict=True)
    )


def signature_of(model: keras.Model, forward: Forward, names: Sequence[str]) -> Signature:
    return Signature(input_tensors(model), describe_outputs(forward, names))
