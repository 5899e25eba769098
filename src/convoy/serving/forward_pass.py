"""A model's forward pass at one batch size, split into constants and a function of the inputs.

Everything that depends only on the weights, mainly folded and packed weights, is computed once and
stored as constants:

    weights --> folding, packing --> constants --+
                                                 +--> run --> outputs
    inputs of a request -------------------------+
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
import numpy as np
from convoy.jaxpr import Rewrite, Trace, evaluate, needed_for, read
from convoy.serving.signature import Signature, TensorSpec
from jax.extend.core import Var


class ForwardPass:
    """The forward pass of a model without training.

    Args:
        model: a functional or sequential model.
        batch_size: the batch size.
        rewrite: function that optimises the trace; its second argument is the trace's inputs that
            are weights.

    Attributes:
        constants: the first argument of `run`.
        constant_vars: the trace's variables for the constants.
        input_vars: the trace's variables for the inputs.
        equations: the equations from these variables to the outputs.
        trace: the whole trace, with the equations that compute the constants.
    """

    def __init__(self, model: keras.Model, batch_size: int, rewrite: Rewrite) -> None:
        weights = [variable.value for variable in model_variables(model)]
        count = len(weights)
        forward = stateless_forward(model)
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in weights]
        shapes += input_shapes(input_specs(model), batch_size)
        trace = Trace.of(lambda *values: forward(values[:count], *values[count:]), shapes)
        if trace.has_effects:
            raise ValueError(
                f"{model.name!r} has side effects, such as printing, and cannot be served. Remove "
                "the operations that have them."
            )
        trace = rewrite(trace, trace.inputs[:count])
        weight_vars = trace.inputs[:count]
        self.trace = trace
        self.input_vars = trace.inputs[count:]
        self.equations, self.constant_vars = needed_for(
            trace.outputs, trace.equations, trace.made_from(weight_vars)
        )
        self.constants = self._compute_constants(dict(zip(weight_vars, weights, strict=True)))
        self.input_shapes = shapes[count:]

    def _compute_constants(self, weights: dict[Var, jax.Array]) -> list[jax.Array]:
        derived = [var for var in self.constant_vars if var not in weights]
        equations, sources = needed_for(derived, self.trace.equations, weights)

        def compute(values: Sequence[Any]) -> list[Any]:
            known = self.trace.constants | dict(zip(sources, values, strict=True))
            evaluate(equations, known)
            return [known[var] for var in derived]

        computed = jax.jit(compute)([weights[var] for var in sources]) if derived else []
        known = weights | dict(zip(derived, computed, strict=True))
        return [known[var] for var in self.constant_vars]

    def run(self, constants: Sequence[jax.Array], *inputs: jax.Array) -> list[jax.Array]:
        """Compute the outputs; a function to compile."""
        values = dict(self.trace.constants)
        values.update(zip(self.constant_vars, constants, strict=True))
        values.update(zip(self.input_vars, inputs, strict=True))
        evaluate(self.equations, values)
        return [read(atom, values) for atom in self.trace.outputs]

    def signature(self, model: keras.Model, output_names: Sequence[str]) -> Signature:
        """Return the names, types and shapes of the inputs and outputs.

        Raises:
            ValueError: if an output does not begin with the batch.
        """
        size, outputs = self.input_shapes[0].shape[0], []
        for name, atom in zip(output_names, self.trace.outputs, strict=True):
            shape = atom.aval.shape
            if not shape or shape[0] != size:
                raise ValueError(
                    f"Output {name!r} of {size} samples has the shape {shape}. Only models whose "
                    "outputs begin with the batch can be served."
                )
            outputs.append(TensorSpec(name, np.dtype(atom.aval.dtype).name, shape[1:]))
        return Signature(input_specs(model), tuple(outputs))


def model_variables(model: keras.Model) -> list[keras.Variable]:
    """Return the variables whose values are the first argument of `stateless_forward`."""
    return [*model.trainable_variables, *model.non_trainable_variables]


def stateless_forward(model: keras.Model) -> Callable[..., list[Any]]:
    """Return a model's forward pass as a function of a list of weights, and of flat inputs."""
    structure = jax.tree.structure(input_structure(model))
    split = len(model.trainable_variables)

    def forward(weights: Sequence[Any], *inputs: Any) -> list[Any]:
        x = jax.tree.unflatten(structure, inputs)
        trainable, others = list(weights[:split]), list(weights[split:])
        outputs, _ = model.stateless_call(trainable, others, x, training=False)
        return jax.tree.leaves(outputs)

    return forward


def input_structure(model: keras.Model) -> Any:
    """Return a model's symbolic inputs, in the structure of its first argument."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def output_structure(model: keras.Model) -> Any:
    return model.outputs[0] if isinstance(model, keras.Sequential) else model.output


def input_specs(model: keras.Model) -> tuple[TensorSpec, ...]:
    """Return the specs of a model's inputs.

    Raises:
        ValueError: if a dimension other than the batch is unknown.
    """
    specs = []
    for leaf in jax.tree.leaves(input_structure(model)):
        if any(size is None for size in leaf.shape[1:]):
            raise ValueError(
                f"Input {leaf.name!r} has the shape {tuple(leaf.shape)}. Only the batch size may "
                "be unknown: use a keras.Input that has all other sizes."
            )
        specs.append(TensorSpec(leaf.name, leaf.dtype, tuple(leaf.shape[1:])))
    return tuple(specs)


def input_shapes(specs: Sequence[TensorSpec], batch_size: Any) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of inputs at a batch size, which may be a symbolic dimension."""
    return [jax.ShapeDtypeStruct((batch_size, *spec.shape), spec.numpy_dtype) for spec in specs]
