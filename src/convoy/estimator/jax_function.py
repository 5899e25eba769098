"""JAX functions inside a graph of Keras layers."""

from collections.abc import Callable
from functools import wraps
from typing import TypeGuard

import jax
import keras
from convoy.types import PyTree


class JaxOperation(keras.Operation):
    """A JAX function as a node of a Keras graph."""

    def __init__(self, function: Callable[..., PyTree], name: str | None = None) -> None:
        super().__init__(name=name)
        self.function = function

    def call(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return self.function(*args, **kwargs)

    def compute_output_spec(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        # Keras marks the product of a tensor and a number as sparse.
        args, kwargs = keras.tree.map_structure(_dense, (args, kwargs))
        return super().compute_output_spec(*args, **kwargs)


def function(computed: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Make a JAX function accept the symbolic tensors of a model function.

    Args:
        computed: a function of arrays, without weights.

    Returns:
        The function, for symbolic tensors and for arrays.

    Example:
    ```python
    @convoy.estimator.function
    def normalise(images):
        return (images - jnp.mean(images)) / jnp.std(images)
    ```
    """

    @wraps(computed)
    def called(*args: PyTree, **kwargs: PyTree) -> PyTree:
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_symbolic)
        if any(map(is_symbolic, leaves)):
            return JaxOperation(computed)(*args, **kwargs)
        return computed(*args, **kwargs)

    return called


def is_symbolic(value: object) -> TypeGuard[keras.KerasTensor]:
    """Return whether a value is a symbolic tensor of a Keras graph."""
    return isinstance(value, keras.KerasTensor)


def _dense(value: PyTree) -> PyTree:
    if is_symbolic(value) and value.sparse:
        return keras.KerasTensor(value.shape, value.dtype, name=value.name)
    return value
