"""What a pipeline puts into its outfeed queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy.ipu.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue

Dtype = str | Callable[[Any], Any] | None


class Kept(keras.metrics.Metric):
    """Keeps what an output is for each micro-batch of a device call: the target is its row.

    Args:
        rows: how many there are, on all replicas together.
        shape: of the output.
        dtype: of the output.
    """

    def __init__(self, rows: int, shape: Sequence[int], dtype: str) -> None:
        super().__init__(name="kept", dtype=dtype)
        # Replicas are added up: each has zeros where others have something.
        stored = "int32" if dtype == "bool" else dtype
        self.kept = self.add_variable((rows, *shape), "zeros", stored, name="kept")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Keep `y_pred` in the row that `y_true` says."""
        del sample_weight
        kept = jnp.asarray(self.kept.value)
        self.kept.assign(kept.at[y_true].add(jnp.asarray(y_pred, kept.dtype)))

    def result(self) -> Any:
        """Return nothing of interest: what was kept is not one number."""
        return jnp.zeros(())

    def rows(self, count: int) -> np.ndarray:
        """Return the first rows, and have all begin anew."""
        value = self.kept.value
        found = np.asarray(value)[:count]
        # Committed as before, or the next device call would be another program.
        zeros = np.zeros(value.shape, self.kept.dtype)
        self.kept.assign(jax.device_put(zeros, value.sharding if value.committed else None))
        return found.astype(bool) if self.dtype == "bool" else found


@dataclass(frozen=True)
class Outfeed:
    """What goes into a queue, and how.

    Attributes:
        queue: `None` is none.
        loss: whether it is the loss, and not what the last stage returns.
        mask: which of what the last stage returns does not go in.
        accumulate: whether the micro-batches of an execution are added up.
        dtype: in which; a function is given each tensor and returns its type.
    """

    queue: IPUOutfeedQueue | None
    loss: bool = False
    mask: tuple[bool, ...] | None = None
    accumulate: bool = False
    dtype: Dtype = None

    def check(self, *, training: bool) -> None:
        """Refuse what does not go together.

        Raises:
            TypeError: if the queue is none.
            ValueError: if an option needs another, or excludes it.
        """
        if self.queue is not None and not isinstance(self.queue, IPUOutfeedQueue):
            raise TypeError(
                f"outfeed_queue is {type(self.queue).__name__}, not an IPUOutfeedQueue."
            )
        if self.loss and self.mask is not None:
            raise ValueError("Both outfeed_loss and outfeed_mask were passed. Pass one of them.")
        for name, given in (("outfeed_loss", self.loss), ("outfeed_mask", self.mask)):
            if given and not training:
                raise ValueError(f"{name} needs an optimizer_function. Pass one, or leave it out.")
        for name, given in (("outfeed_loss", self.loss), ("accumulate_outfeed", self.accumulate)):
            if given and self.queue is None:
                raise ValueError(f"{name} needs an outfeed_queue. Pass one.")
        if self.accumulate and self.queue and self.queue.mode is not IPUOutfeedMode.ALL:
            raise ValueError(
                "accumulate_outfeed needs a queue that keeps ALL. Make it without outfeed_mode."
            )

    def chosen(self, outputs: Any, loss: Any, *, training: bool) -> Any:
        """Return the tensors that go into the queue, as an element of it will be.

        Args:
            outputs: what the last stage returned: a tensor, a tuple or a dict.
            loss: what the optimizer function said.
            training: whether it trains; then, as if they are added up, elements are lists.

        Raises:
            ValueError: if the mask has not an entry for each output, or there is no queue.
        """
        if self.loss:
            return loss
        listed = _listed(outputs)
        if self.mask is not None:
            if len(self.mask) != len(listed):
                raise ValueError(
                    f"outfeed_mask has {len(self.mask)} entries, but the last stage returns "
                    f"{len(listed)} outputs. Pass one for each."
                )
            listed = [x for x, left_out in zip(listed, self.mask, strict=True) if not left_out]
        if listed and self.queue is None:
            raise ValueError(
                f"The last stage returns {len(listed)} outputs, but there is no queue for them. "
                "Pass an outfeed_queue."
            )
        if training or (self.accumulate and not isinstance(outputs, dict)):
            return listed
        return list(outputs) if isinstance(outputs, tuple) else outputs

    def put(self, values: Any, tensors: Any, count: int, replicas: int) -> None:
        """Put in what came out of some executions.

        Args:
            values: arrays with a row for each micro-batch and replica, in this order.
            tensors: what they are the values of.
            count: micro-batches of an execution.
            replicas: of the pipeline.
        """
        if self.queue is None:
            return
        self.queue.enqueued = True

        def shaped(value: np.ndarray, tensor: Any) -> np.ndarray:
            shape = value.shape[1:]
            if self.accumulate:
                dtype = self.dtype(tensor) if callable(self.dtype) else self.dtype
                typed = keras.backend.standardize_dtype(value.dtype if dtype is None else dtype)
                apart = value.reshape(-1, count, replicas, *shape)
                value = apart.sum(axis=1, dtype=jnp.dtype(typed))
            if self.queue is not None and self.queue.mode is IPUOutfeedMode.LAST:
                value = value[-replicas:]
            return value.reshape(-1, *((replicas,) if replicas > 1 else ()), *shape)

        if jax.tree.leaves(values):
            self.queue.put(jax.tree.map(shaped, values, tensors))


def _listed(outputs: Any) -> list[Any]:
    if isinstance(outputs, dict):
        return list(outputs.values())
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
