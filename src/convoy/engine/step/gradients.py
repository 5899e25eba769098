"""Gradients of a loss with respect to the weights, and to captured tensors inside the model.

To capture the gradient of a tensor, a zero of its shape is added to it. The gradient of that zero
is the gradient of the tensor.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar

import jax
import keras
from convoy.context import bound
from convoy.engine.data.placement import tree_zeros
from convoy.engine.prepared_model import PreparedModel
from convoy.types import Arrays, PyTree

CapturedGradients = dict[str, jax.Array]
"""Captured gradients by tag."""


class Probes:
    """The zeros that are added to tensors in one trace.

    Attributes:
        zeros: zeros by tag; `None` in the trace that finds the required zeros.
        shapes: shapes and types of the tensors by tag.
    """

    def __init__(self) -> None:
        self.zeros: Mapping[str, jax.Array] | None = None
        self.shapes: dict[str, jax.ShapeDtypeStruct] = {}

    def add(self, tensor: jax.Array, tag: str) -> jax.Array:
        if tag in self.shapes:
            raise ValueError(f"Gradients are captured twice under the tag {tag!r}. Pass another.")
        self.shapes[tag] = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
        return tensor if self.zeros is None else tensor + self.zeros[tag]


_probes: ContextVar[Probes | None] = ContextVar("convoy_probes", default=None)


def captured(tensor: jax.Array, tag: str) -> jax.Array:
    """Return the tensor; if gradients are computed, its gradient is captured under a tag.

    Raises:
        ValueError: if another gradient is captured under the same tag.
    """
    probes = _probes.get()
    return tensor if probes is None else probes.add(tensor, tag)


def value_and_gradients(
    compute: Callable[..., tuple[jax.Array, PyTree]],
    values: PyTree,
    *args: PyTree,
    **kwargs: PyTree,
) -> tuple[tuple[jax.Array, PyTree], PyTree, CapturedGradients]:
    """Differentiate a function, as `jax.value_and_grad(compute, has_aux=True)` does.

    Args:
        compute: a function that returns a loss and auxiliary data.
        values: its first argument, with respect to which it is differentiated.
        *args: its other arguments.
        **kwargs: its other arguments.

    Returns:
        The result of the function, the gradients of `values`, and those that were captured.

    Raises:
        ValueError: if gradients are captured in a function that JAX traces only once.
    """
    found = Probes()
    with bound(_probes, found):
        result, gradients = jax.value_and_grad(compute, has_aux=True)(values, *args, **kwargs)
    if not found.shapes:
        return result, gradients, {}
    zeros = tree_zeros(found.shapes)
    probes = Probes()

    def probed(both: tuple[PyTree, Mapping[str, jax.Array]]) -> tuple[jax.Array, PyTree]:
        values, probes.zeros = both
        with bound(_probes, probes):
            return compute(values, *args, **kwargs)

    result, (gradients, caught) = jax.value_and_grad(probed, has_aux=True)((values, zeros))
    if probes.shapes != found.shapes:
        # JAX has reused a part of the first trace, which contains no added zeros.
        raise ValueError(
            "Gradients are captured inside of a function under jax.jit or jax.checkpoint, where "
            "that is not possible. Capture them outside of it, or leave out "
            "`activation_checkpointing`."
        )
    return result, gradients, caught


def map_gradients(model: keras.Model, trainable: Arrays, gradients: Arrays) -> Arrays:
    """Apply the model's gradient map to the gradients of one micro-batch.

    Args:
        model: the model, whose `PreparedModel.gradient_map` is used if there is one.
        trainable: values of the trainable variables while the map runs.
        gradients: their gradients.
    """
    gradient_map = PreparedModel.of(model).gradient_map
    if gradient_map is None:
        return gradients
    variables = model.trainable_variables
    with keras.StatelessScope(state_mapping=zip(variables, trainable, strict=True)):
        return [gradient_map(g, v) for g, v in zip(gradients, variables, strict=True)]
