"""Gradients of tensors inside of a model, captured on their way back.

A zero of the tensor's shape is added to it. The gradient of that zero is the one that comes back to
the tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import keras
from convoy.engine.prepared_model import PreparedModel
from convoy.types import Arrays

Gradients = dict[str, jax.Array]
"""By the tags under which they are captured."""


class Probes:
    """The zeros that are added to tensors in one trace.

    Args:
        zeros: by tag; `None` to find out which there are to be.
    """

    def __init__(self, zeros: Mapping[str, Any] | None = None) -> None:
        self.zeros = zeros
        self.shapes: dict[str, jax.ShapeDtypeStruct] = {}

    def add(self, tensor: Any, tag: str) -> Any:
        if tag in self.shapes:
            raise ValueError(f"Gradients are captured twice under the tag {tag!r}. Pass another.")
        self.shapes[tag] = jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
        return tensor if self.zeros is None else tensor + self.zeros[tag]


_probes: ContextVar[Probes | None] = ContextVar("convoy_probes", default=None)


def captured(tensor: Any, tag: str) -> Any:
    """Return a tensor; where gradients are captured, its own is, under a tag.

    Raises:
        ValueError: if another one is under the same tag.
    """
    probes = _probes.get()
    return tensor if probes is None else probes.add(tensor, tag)


def value_and_gradients(
    compute: Callable[..., tuple[jax.Array, Any]], values: Any, *args: Any, **kwargs: Any
) -> tuple[tuple[jax.Array, Any], Any, Gradients]:
    """Differentiate a function, as `jax.value_and_grad(compute, has_aux=True)` does.

    Args:
        compute: returns a loss, and something beside it.
        values: its first argument, by which it is differentiated.
        *args: its others.
        **kwargs: its others.

    Returns:
        What it returned, the gradients of `values`, and those that were captured.

    Raises:
        ValueError: if some are captured where JAX traces only once.
    """
    found = Probes()
    with _probing(found):
        result, gradients = jax.value_and_grad(compute, has_aux=True)(values, *args, **kwargs)
    if not found.shapes:
        return result, gradients, {}
    zeros = {tag: jnp.zeros(shape.shape, shape.dtype) for tag, shape in found.shapes.items()}
    given = Probes()

    def probed(both: tuple[Any, Any]) -> tuple[jax.Array, Any]:
        values, given.zeros = both
        with _probing(given):
            return compute(values, *args, **kwargs)

    result, (gradients, caught) = jax.value_and_grad(probed, has_aux=True)((values, zeros))
    if given.shapes != found.shapes:
        # JAX has kept a part of the first trace, to which nothing was added.
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


@contextlib.contextmanager
def _probing(probes: Probes) -> Iterator[None]:
    token = _probes.set(probes)
    try:
        yield
    finally:
        _probes.reset(token)
