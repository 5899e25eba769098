"""Metrics of a pipeline: each replica's own while it runs, one for all of them in between."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import distributed
from convoy.engine.data.chunks import Chunk
from convoy.engine.step.replicate import Roles
from convoy.pipeline.runner.layout import Layout

Arrays = list[jax.Array]


def metrics_of_replicas(
    metrics: Arrays, layout: Layout, chunk: Chunk, roles: Roles
) -> dict[int, Arrays]:
    """Return the metrics that each replica begins with; all but the first begin anew."""
    last = layout.last_column

    def beginning(replica: int) -> Arrays:
        values = [last.split(value)[replica] for value in metrics]
        if replica == 0 or not chunk.sharded:
            return values
        return [
            jnp.zeros_like(value) if aggregation == "sum" else value
            for value, aggregation in zip(values, roles.aggregations, strict=True)
        ]

    return {replica: beginning(replica) for replica in last.devices}


def total_metrics(
    metrics: dict[int, Arrays],
    variables: list[keras.Variable],
    roles: Roles,
    layout: Layout,
    chunk: Chunk,
) -> Arrays:
    """Return the metrics of all replicas from those of each, the same in every process."""
    # A rest was the same on every replica.
    counted = [own for replica, own in metrics.items() if chunk.sharded or replica == 0]
    device = layout.common.first_device
    totals: list[Any] = [
        sum((jax.device_put(own[i], device) for own in counted[1:]), counted[0][i])
        if counted
        else np.zeros(variable.shape, jnp.dtype(variable.dtype))
        for i, variable in enumerate(variables)
    ]
    if layout.placement.spans_processes:
        everywhere = distributed.totals([np.asarray(total) for total in totals])
        totals = [jax.device_put(total, device) for total in everywhere]
    return [
        total if aggregation == "sum" or not chunk.sharded else total / layout.placement.replicas
        for total, aggregation in zip(totals, roles.aggregations, strict=True)
    ]
