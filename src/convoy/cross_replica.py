"""Collective operations over all replicas, for use inside of layers and losses.

If a step runs on one device, or on the same global batch on every device, there is one replica, and
each operation returns its argument.

Example:
```python
class SharedMean(keras.layers.Layer):
    def call(self, inputs):
        return inputs - convoy.cross_replica.mean(keras.ops.mean(inputs, axis=0, keepdims=True))
```
"""

from typing import Any

import jax
from convoy.engine.data.placement import AXIS
from convoy.engine.step.all_reduce import replicas_in_trace


def sum(x: Any) -> Any:
    """Return the sum of an array (or a structure of arrays) over all replicas."""
    return jax.lax.psum(x, AXIS) if count() > 1 else x


def mean(x: Any) -> Any:
    """Return the mean of an array (or a structure of arrays) over all replicas."""
    return jax.lax.pmean(x, AXIS) if count() > 1 else x


def gather(x: Any, axis: int = 0) -> Any:
    """Return the arrays of all replicas, concatenated along an axis in the replicas' order."""
    return jax.lax.all_gather(x, AXIS, axis=axis, tiled=True) if count() > 1 else x


def count() -> int:
    """Return the number of replicas that run the code that is being traced."""
    return replicas_in_trace()
