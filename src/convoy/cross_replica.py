"""Operations over all replicas, for use inside layers and losses.

Where a step runs on one device, or the same whole batch on every device, there is one replica, and
they return what they are given.

Example:
```python
class SharedMean(keras.layers.Layer):
    def call(self, inputs):
        return inputs - convoy.cross_replica.mean(keras.ops.mean(inputs, axis=0))
```
"""

from __future__ import annotations

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
    """Return the arrays of all replicas, joined along an axis in the order of the replicas."""
    return jax.lax.all_gather(x, AXIS, axis=axis, tiled=True) if count() > 1 else x


def count() -> int:
    """Return how many replicas run what is being traced."""
    return replicas_in_trace()
