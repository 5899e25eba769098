"""Keras's callbacks: their state, their use of weights and files, and the thread they run on."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import keras
from keras.src.utils import io_utils, python_utils

# Keras's callbacks have no `get_state`. These attributes, some of them private, hold what a
# callback carries from epoch to epoch; a checkpoint saves them.
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
    """Return the attributes that hold the state of one of Keras's own callbacks."""
    for kind, names in _CALLBACK_STATE.items():
        if isinstance(callback, kind):
            return names
    return ()


def without_file_writers(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Leave out Keras's own callbacks that write files, which only one process of a run does."""
    return [
        c for c in keras.tree.flatten(callbacks) if c is not None and not isinstance(c, _WRITERS)
    ]


def weight_reading_callback(callbacks: Any) -> keras.callbacks.Callback | None:
    """Return the first of Keras's own callbacks that reads weights during training."""
    for callback in keras.tree.flatten(callbacks):
        if (
            isinstance(callback, _READERS)
            or getattr(callback, "restore_best_weights", False)
            or getattr(callback, "histogram_freq", 0)
        ):
            return callback
    return None


# Listed by class, because a callback has no attribute for whether it reads weights or writes files.
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


class ProgressBar(keras.callbacks.ProgbarLogger):
    """Keras's progress bar, limited to the end of an epoch.

    The batch index goes past the end if the last execution has fewer steps than
    `steps_per_execution`.
    """

    micro_batches_per_step: float = 1
    """Micro-batches of this process in a step, over all its replicas."""

    def advance(self, micro_batches: int) -> None:
        """Show that a device call has computed some micro-batches, before its batches end."""
        self._in_call += micro_batches / self.micro_batches_per_step
        steps = self.seen + int(self._in_call * self._batches_per_step)
        if self.progbar is not None and steps:
            # Keras weights the logs of a batch by the steps since the last update.
            before = self.progbar._seen_so_far
            self.progbar.update(steps, finalize=False)
            self.progbar._seen_so_far = before

    def note_compilation(self) -> None:
        """Show that programs are being compiled, until the bar is drawn."""
        if self.progbar is not None and not self.progbar._prev_total_width:
            text = "compiling ..."
            io_utils.print_msg(f"\r{text}", line_break=False)
            self.progbar._prev_total_width = len(text)

    def set_params(self, params: dict[str, Any]) -> None:
        """Count the batches of all replicas in a step, if `batches_per_step` is set."""
        super().set_params(params)
        self._in_call = 0.0
        self._batches_per_step = params.get("batches_per_step", 1)
        if self.target is not None:
            self.target *= self._batches_per_step

    def _update_progbar(self, batch: int, logs: Any = None) -> None:
        self._in_call = 0.0
        batch = (batch + 1) * self._batches_per_step - 1
        super()._update_progbar(batch if self.target is None else min(batch, self.target - 1), logs)


class Callbacks(keras.callbacks.CallbackList):
    """Keras's callback list, with batch hooks on one thread that waits for device values.

    Keras's `CallbackList` runs hooks that are `async_safe` on a pool of threads, which may call
    them out of order, so that a progress bar moves backwards. A pool of one thread keeps the order.
    Batches without a hook are not submitted at all.
    """

    _executor: ThreadPoolExecutor | None
    _progbar: keras.callbacks.ProgbarLogger | None

    def _on_begin(self) -> None:
        # Before Keras's own `_on_begin`, which would make a pool of several threads.
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1)
        super()._on_begin()
        self._has_train_hook = self._has_hook("on_train_batch_end", "on_batch_end")
        self._has_test_hook = self._has_hook("on_test_batch_end")
        self._has_predict_hook = self._has_hook("on_predict_batch_end")

    def _add_default_callbacks(self, add_history: bool, add_progbar: bool) -> None:
        # Keras would add its own progress bar, which counts past the end of an epoch.
        super()._add_default_callbacks(add_history, add_progbar=False)
        if add_progbar and self._progbar is None:
            self._progbar = ProgressBar()
            self.callbacks.append(self._progbar)

    def _has_hook(self, *names: str) -> bool:
        return any(
            # Keras marks the empty hooks of its `Callback`.
            not python_utils.is_default(getattr(callback, name))
            for callback in self.callbacks
            for name in names
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._has_train_hook:
            super().on_train_batch_end(batch, logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._has_test_hook:
            super().on_test_batch_end(batch, logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._has_predict_hook:
            super().on_predict_batch_end(batch, logs)


def progress_bar(callbacks: keras.callbacks.CallbackList, mode: str) -> ProgressBar | None:
    """Return the progress bar that shows the batches of a run, if there is one."""
    bar = getattr(callbacks, "_progbar", None)
    if not isinstance(bar, ProgressBar) or bar.verbose != 1:
        return None
    # The validation inside of `fit` is silent.
    return None if mode == "evaluate" and bar._called_in_fit else bar


def python_logs(logs: dict[str, Any]) -> dict[str, float]:
    """Convert logs to Python numbers, which waits for the device."""
    # Keras would keep a value whose computation failed, and the error would only appear later.
    return python_utils.pythonify_logs(jax.block_until_ready(logs))
