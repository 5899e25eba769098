"""JAX functions among Keras layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import keras


class Function(keras.Operation):
    """A JAX function as a part of a Keras graph."""

    def __init__(self, computed: Callable[..., Any], name: str | None = None) -> None:
        super().__init__(name=name)
        self.computed = computed

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.computed(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Keras takes the product of a tensor and a number for a sparse one.
        args, kwargs = keras.tree.map_structure(_dense, (args, kwargs))
        return super().compute_output_spec(*args, **kwargs)


def function(computed: Callable[..., Any]) -> Callable[..., Any]:
    """Have a JAX function take the tensors of a model function, which hold no values yet.

    Args:
        computed: a function of arrays; it has no weights.

    Returns:
        The function, for tensors and for arrays.

    Example:
    ```python
    @convoy.estimator.function
    def normalise(images):
        return (images - jnp.mean(images)) / jnp.std(images)
    ```
    """

    @wraps(computed)
    def called(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs), is_leaf=is_tensor)
        if any(map(is_tensor, leaves)):
            return Function(computed)(*args, **kwargs)
        return computed(*args, **kwargs)

    return called


def is_tensor(value: Any) -> bool:
    """Say whether a value is a tensor of a graph, without numbers in it."""
    return isinstance(value, keras.KerasTensor)


def _dense(value: Any) -> Any:
    if is_tensor(value) and value.sparse:
        return keras.KerasTensor(value.shape, value.dtype, name=value.name)
    return value
