"""Metrics that each replica computes for its own data."""

import jax
import jax.numpy as jnp
import keras
from convoy.ipu.enums import ReplicatedMetricReductionMethod
from convoy.ipu.ops.replication_ops import replication_index
from convoy.types import PyTree

# The metrics that Keras chooses for these names depend on the shapes of labels and outputs.
_BY_SHAPE = ("accuracy", "acc", "crossentropy", "ce")


class PerReplica(keras.metrics.Metric):
    """A metric of each replica's own data, and the reduction of their results.

    It has a copy of the metric for each replica, which gives the data of others a weight of zero.

    Args:
        metric: the metric of one replica.
        replicas: number of replicas.
        method: `LIST`, `SUM` or `MEAN`.
    """

    def __init__(
        self, metric: keras.metrics.Metric, replicas: int, method: ReplicatedMetricReductionMethod
    ) -> None:
        super().__init__(name=metric.name, dtype=metric.dtype)
        others = [type(metric).from_config(metric.get_config()) for _ in range(replicas - 1)]
        self.copies = [metric, *others]
        self.method = method

    @property
    def variables(self) -> list[keras.Variable]:
        return [variable for copy in self.copies for variable in copy.variables]

    def update_state(self, *values: jax.Array, sample_weight: jax.Array | None = None) -> None:
        """Update this replica's copy with the values, and the others with a weight of zero."""
        shape = jnp.shape(values[-1])[:1]
        weight = jnp.ones(shape) if sample_weight is None else sample_weight
        own = replication_index()
        for number, copy in enumerate(self.copies):
            counts = jnp.asarray(own == number, jnp.float32)
            copy.update_state(*values, sample_weight=jnp.asarray(weight, jnp.float32) * counts)

    def reset_state(self) -> None:
        for copy in self.copies:
            copy.reset_state()

    def result(self) -> jax.Array:
        """Return the values of all replicas, their sum, or their mean."""
        values = jnp.stack([jnp.asarray(copy.result()) for copy in self.copies])
        if self.method == ReplicatedMetricReductionMethod.SUM:
            return jnp.sum(values, axis=0)
        if self.method == ReplicatedMetricReductionMethod.MEAN:
            return jnp.mean(values, axis=0)
        return values


def counted_by_replica(
    metric: PyTree, replicas: int, method: ReplicatedMetricReductionMethod
) -> PerReplica | None:
    """Return an object, a function or a name that `compile` takes as a metric of each replica.

    Raises:
        ValueError: if it is a name that stands for different metrics.
    """
    if metric is None:
        return None
    if isinstance(metric, str) and metric.lower() in _BY_SHAPE:
        raise ValueError(
            f"The metric {metric!r} is a name for several, which {method.name} does not support. "
            "Pass an object, for example keras.metrics.SparseCategoricalAccuracy()."
        )
    if not isinstance(metric, keras.metrics.Metric):
        word, found = metric, keras.metrics.get(metric)
        if not isinstance(found, keras.metrics.Metric):
            found = keras.metrics.MeanMetricWrapper(found, name=getattr(found, "__name__", None))
        if isinstance(word, str):
            found.name = word  # as Keras does
        metric = found
    return PerReplica(metric, replicas, method)
