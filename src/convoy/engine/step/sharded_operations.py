"""Convolutions and poolings on a global batch, computed by each replica for its own samples.

XLA's partitioner divides XLA's own operations over the replicas, but not calls of native kernels:
it would gather their operands on every device. A partitioned step therefore runs these operations
in `shard_map`, where every array is on one device:

    partitioner     x, a shard per replica -> shard_map( native kernel ) -> y, a shard per replica

JAX differentiates `shard_map`, and sums the gradient of a kernel over the replicas.
"""

from collections.abc import Callable
from typing import Any

import jax
import keras
from convoy.engine.data.placement import AXIS
from convoy.types import Tensor
from jax.sharding import Mesh, PartitionSpec

Operation = Callable[..., Tensor]
"""An operation of Keras's backend."""


class ShardedOperations:
    """Keras's operations on a global batch; see `keras_bridge.replaced_operations`.

    Args:
        mesh: the devices of the replicas.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh

    def _by_replica(
        self, original: Operation, inputs: Tensor, *others: Any, **settings: Any
    ) -> Tensor:
        """Run an operation per replica; the first axis of its first operand is the sample."""
        inputs = keras.ops.convert_to_tensor(inputs)
        if not inputs.shape or inputs.shape[0] % self.mesh.size:
            return original(inputs, *others, **settings)
        arrays = [keras.ops.convert_to_tensor(x) for x in others if hasattr(x, "shape")]

        def local(inputs: jax.Array, arrays: list[jax.Array]) -> jax.Array:
            rest = iter(arrays)
            arguments = (next(rest) if hasattr(x, "shape") else x for x in others)
            return original(inputs, *arguments, **settings)

        by_sample = PartitionSpec(AXIS)
        divided = jax.shard_map(
            local, mesh=self.mesh, in_specs=(by_sample, PartitionSpec()), out_specs=by_sample
        )
        return divided(inputs, arrays)

    conv = depthwise_conv = conv_transpose = max_pool = average_pool = _by_replica
