"""The metrics of a share of a batch, and those that only the whole batch can update.

Keras's metrics keep sums, so those of replicas add up. What a metric of the user's keeps, say the
largest of something, is not known: each replica updates it by the samples of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
from convoy import keras_bridge
from convoy.engine.replica_axis import AXIS, replicas_in_trace
from convoy.engine.state import Arrays

MetricsUpdate = Callable[..., tuple[dict[str, Any], Arrays]]
"""Takes the metrics' state, the loss, inputs, targets, outputs and weights of a share."""


def metrics_update(model: keras.Model) -> MetricsUpdate:
    """Return what updates the state of a model's metrics by one micro-batch."""
    together = keras_bridge.are_of_users_metrics(model, model.metrics_variables)

    def update(metrics: Arrays, loss: jax.Array, *batch: Any) -> tuple[dict[str, Any], Arrays]:
        logs, own = keras_bridge.update_metrics(model, metrics, loss, *batch)
        if replicas_in_trace() == 1 or not any(together):
            return logs, own
        mean = jax.lax.pmean(loss, AXIS)
        _, whole = keras_bridge.update_metrics(model, metrics, mean, *_gathered(batch))
        choices = zip(together, whole, own, strict=True)
        return logs, [all_of if is_together else share for is_together, all_of, share in choices]

    return update


def _gathered(batch: Any) -> Any:
    """Return the samples of all replicas, in their order, with the masks of outputs."""

    def gather(leaf: jax.Array) -> jax.Array:
        mask = keras_bridge.get_keras_mask(leaf)
        whole = jax.lax.all_gather(leaf, AXIS, tiled=True)
        if mask is not None:
            keras_bridge.set_keras_mask(whole, gather(mask))
        return whole

    return jax.tree.map(gather, batch)
