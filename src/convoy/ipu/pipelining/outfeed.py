"""Outputs that a pipeline puts into its outfeed queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy.estimator.network import reset_on_device
from convoy.estimator.user_functions import as_list
from convoy.ipu import checks
from convoy.ipu.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue
from convoy.types import PyTree

Dtype = str | Callable[[keras.KerasTensor], object] | None


class MicroBatchOutputs(keras.metrics.Metric):
    """Keeps an output for each micro-batch of a device call; the target is the index of its row.

    Args:
        rows: number of micro-batches of all replicas.
        shape: shape of the output.
        dtype: dtype of the output.
    """

    def __init__(self, rows: int, shape: Sequence[int], dtype: str) -> None:
        super().__init__(name="kept", dtype=dtype)
        # Summed over replicas: in each row, one replica has values and the others have zeros.
        stored = "int32" if dtype == "bool" else dtype
        self.kept = self.add_variable((rows, *shape), "zeros", stored, name="kept")

    def update_state(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Keep `y_pred` in the row with the index `y_true`."""
        kept = jnp.asarray(self.kept.value)
        self.kept.assign(kept.at[y_true].add(jnp.asarray(y_pred, kept.dtype)))

    def result(self) -> jax.Array:
        """Return zero, since Keras expects a scalar."""
        return jnp.zeros(())

    def rows(self, count: int) -> np.ndarray:
        """Return the first rows, and reset all of them."""
        found = np.asarray(self.kept.value)[:count]
        reset_on_device(self.kept)
        return found.astype(bool) if self.dtype == "bool" else found


@dataclass(frozen=True)
class Outfeed:
    """The outputs that go into a queue.

    Attributes:
        queue: the queue, or `None`.
        loss: whether the loss goes into the queue instead of the last stage's outputs.
        mask: for each output of the last stage, whether it is left out.
        accumulate: whether outputs are summed over the micro-batches of an execution.
        dtype: dtype of these sums, or a function that returns it for a tensor.
    """

    queue: IPUOutfeedQueue | None
    loss: bool = False
    mask: tuple[bool, ...] | None = None
    accumulate: bool = False
    dtype: Dtype = None

    def check(self, *, training: bool) -> None:
        """Check that the options fit together.

        Raises:
            TypeError: if the queue is something else.
            ValueError: if an option requires or excludes another.
        """
        checks.instance("outfeed_queue", self.queue, IPUOutfeedQueue, "an IPUOutfeedQueue")
        if self.loss and self.mask is not None:
            raise ValueError("Both outfeed_loss and outfeed_mask were passed. Pass one of them.")
        for name, given in (("outfeed_loss", self.loss), ("outfeed_mask", self.mask)):
            if given and not training:
                raise ValueError(f"{name} needs an optimizer_function. Pass one, or leave it out.")
        for name, given in (("outfeed_loss", self.loss), ("accumulate_outfeed", self.accumulate)):
            if given and self.queue is None:
                raise ValueError(f"{name} needs an outfeed_queue. Pass one.")
        if self.accumulate and self.queue and self.queue.mode is not IPUOutfeedMode.ALL:
            raise ValueError("accumulate_outfeed needs a queue that keeps ALL. Leave out its mode.")

    def chosen(self, outputs: PyTree, loss: keras.KerasTensor | None, *, training: bool) -> PyTree:
        """Return the tensors that go into the queue, in the structure of its elements.

        Args:
            outputs: outputs of the last stage: a tensor, a tuple or a dict.
            loss: the loss, in training.
            training: whether the pipeline trains. Elements are then lists, as with `accumulate`.

        Raises:
            ValueError: if the mask does not have an entry for each output, or there is no queue.
        """
        if self.loss:
            return loss
        listed = as_list(list(outputs.values()) if isinstance(outputs, dict) else outputs)
        if self.mask is not None:
            if len(self.mask) != len(listed):
                raise ValueError(
                    f"outfeed_mask has {len(self.mask)} entries, but the last stage returns "
                    f"{len(listed)} outputs. Pass one for each."
                )
            listed = [x for x, left_out in zip(listed, self.mask, strict=True) if not left_out]
        if listed and self.queue is None:
            raise ValueError(f"The last stage has {len(listed)} outputs. Pass an outfeed_queue.")
        if training or (self.accumulate and not isinstance(outputs, dict)):
            return listed
        return list(outputs) if isinstance(outputs, tuple) else outputs

    def put(
        self, values: PyTree, tensors: PyTree, gradient_accumulation: int, replicas: int
    ) -> None:
        """Put the outputs of some executions into the queue.

        Args:
            values: arrays with a row for each micro-batch and replica, in this order.
            tensors: the symbolic tensors of these values.
            gradient_accumulation: micro-batches per execution.
            replicas: number of replicas.
        """
        if self.queue is None:
            return
        self.queue.enqueued = True

        def shaped(value: np.ndarray, tensor: keras.KerasTensor) -> np.ndarray:
            shape = value.shape[1:]
            if self.accumulate:
                dtype = self.dtype(tensor) if callable(self.dtype) else self.dtype
                typed = keras.backend.standardize_dtype(value.dtype if dtype is None else dtype)
                apart = value.reshape(-1, gradient_accumulation, replicas, *shape)
                value = apart.sum(axis=1, dtype=jnp.dtype(typed))
            if self.queue is not None and self.queue.mode is IPUOutfeedMode.LAST:
                value = value[-replicas:]
            return value.reshape(-1, *((replicas,) if replicas > 1 else ()), *shape)

        if jax.tree.leaves(values):
            self.queue.put(jax.tree.map(shaped, values, tensors))
