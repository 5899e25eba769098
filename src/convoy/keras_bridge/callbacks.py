"""Callbacks: what they remember, and who waits for the device."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
from keras.src.utils import python_utils

_CALLBACK_STATE: dict[type[keras.callbacks.Callback], tuple[str, ...]] = {
    keras.callbacks.History: ("history", "epoch"),
    keras.callbacks.EarlyStopping: (
        "wait",
        "stopped_epoch",
        "best",
        "best_epoch",
        "best_weights",
    ),
    keras.callbacks.ReduceLROnPlateau: ("best", "wait", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: (
        "best",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
}


def callback_state_names(callback: keras.callbacks.Callback) -> tuple[str, ...]:
    """Return the attributes in which one of Keras's own callbacks remembers earlier epochs."""
    for kind, names in _CALLBACK_STATE.items():
        if isinstance(callback, kind):
            return names
    return ()


def without_files(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Leave out Keras's own callbacks that write files: one process of a run does that."""
    return [
        c for c in keras.tree.flatten(callbacks) if c is not None and not isinstance(c, _WRITERS)
    ]


def reader_of_weights(callbacks: Any) -> keras.callbacks.Callback | None:
    """Return the first of Keras's own callbacks that reads a model's weights while it trains."""
    for callback in keras.tree.flatten(callbacks):
        if (
            isinstance(callback, _READERS)
            or getattr(callback, "restore_best_weights", False)
            or getattr(callback, "histogram_freq", 0)
        ):
            return callback
    return None


_READERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.SwapEMAWeights,
)
_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


class Callbacks(keras.callbacks.CallbackList):
    """Keras's list of callbacks, which leaves waiting for the device to another thread.

    Keras starts as many threads as it likes, and a progress bar may then run backwards. One is
    enough, and keeps the order; and none is woken up where nobody listens.
    """

    _executor: ThreadPoolExecutor | None

    def _on_begin(self) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1)
        super()._on_begin()
        self._train_heard = self._heard("on_train_batch_end", "on_batch_end")
        self._test_heard = self._heard("on_test_batch_end")
        self._predict_heard = self._heard("on_predict_batch_end")

    def _heard(self, *names: str) -> bool:
        return any(
            not python_utils.is_default(getattr(callback, name))
            for callback in self.callbacks
            for name in names
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._train_heard:
            super().on_train_batch_end(batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._test_heard:
            super().on_test_batch_end(batch, logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._predict_heard:
            super().on_predict_batch_end(batch, logs)


def python_logs(logs: dict[str, Any]) -> dict[str, float]:
    """Turn logs into plain numbers, which waits for the device."""
    return python_utils.pythonify_logs(logs)
