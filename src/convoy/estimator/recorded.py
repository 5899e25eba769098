"""Values of single steps, out of the device loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
from convoy import cross_replica


class Recorded(keras.metrics.Metric):
    """Keeps the value that a tensor has in every step of a device call: the mean over replicas.

    Args:
        shape: of the tensor.
        steps: of the device call.
        dtype: of the values.
    """

    def __init__(self, shape: Sequence[int], steps: int, dtype: str = "float32") -> None:
        super().__init__(name="recorded", dtype=dtype)
        self.kept = self.add_variable((steps, *shape), "zeros", dtype, name="kept")
        # Counts alike on all replicas, where the values are added up.
        self.count = self.add_variable((), "zeros", "int32", aggregation="none", name="count")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Keep `y_pred`; the others are not looked at."""
        del y_true, sample_weight
        value = jnp.asarray(y_pred, self.kept.dtype) / cross_replica.count()
        place = jnp.asarray(self.count.value, jnp.int32)
        kept = jnp.asarray(self.kept.value)
        self.kept.assign(kept.at[place].add(value.astype(kept.dtype), mode="drop"))
        self.count.assign(place + 1)

    def result(self) -> Any:
        """Return the mean of all that is kept, so that it is one number."""
        count = jnp.maximum(jnp.asarray(self.count.value, jnp.float32), 1)
        kept = jnp.asarray(self.kept.value, jnp.float32)
        return jnp.sum(jnp.mean(kept.reshape(kept.shape[0], -1), axis=1)) / count

    def values(self) -> np.ndarray:
        """Return what was kept, a row for each step."""
        return np.asarray(self.kept.value)[: int(np.asarray(self.count.value))]
