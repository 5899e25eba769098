"""Type aliases for values that Keras and JAX leave untyped."""

from typing import Any, TypeAlias

import jax

PyTree: TypeAlias = Any
"""An array, or a nested list, tuple, dict or named tuple of arrays."""

Shapes: TypeAlias = Any
"""A PyTree of `jax.ShapeDtypeStruct`."""

Batch: TypeAlias = Any
"""The samples of one step: inputs, or a tuple of inputs, targets and sample weights."""

Data: TypeAlias = Any
"""Input data as a user passes it: arrays, a generator, a `PyDataset`, a `tf.data.Dataset`."""

Arrays: TypeAlias = list[jax.Array]

Logs: TypeAlias = dict[str, Any]
"""Values by name, as Keras passes them to callbacks: device scalars or Python numbers."""

Json: TypeAlias = dict[str, Any]
"""A JSON object."""

Tensor: TypeAlias = Any
"""A tensor of Keras: an array with values, traced or symbolic."""

Tensors: TypeAlias = dict[int, Tensor]
"""Values of a graph's tensors, by the id of the symbolic tensor."""
