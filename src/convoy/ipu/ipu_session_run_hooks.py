"""Hooks for estimators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras
from convoy.estimator.hooks import Keep, LoggingHook, Run, check_intervals
from convoy.estimator.user_functions import as_list
from convoy.ipu.ipu_outfeed_queue import IPUOutfeedMode
from convoy.types import Logs, PyTree


@dataclass(frozen=True)
class LogOp:
    """The operation that logs the tensors of a hook."""

    hook: IPULoggingTensorHook


class IPULoggingTensorHook(LoggingHook):
    """Logs tensors of the device loop.

    Args:
        every_n_iter: device calls between two log lines.
        every_n_secs: seconds between two log lines, instead of `every_n_iter`.
        at_end: whether the end of the run is logged too.
        formatter: a function that makes the log line from a dict of values.
        logging_mode: `IPUOutfeedMode.LAST` logs the last value, `ALL` an array of all values
            since the previous line.

    Raises:
        ValueError: unless exactly one of the intervals, or only `at_end`, is passed.

    Example:
    ```python
    hook = ipu.ipu_session_run_hooks.IPULoggingTensorHook(every_n_secs=3)
    train_op = [optimizer.minimize(loss), hook.log({"loss": loss})]
    ```
    """

    LoggingMode = IPUOutfeedMode

    def __init__(
        self,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[Logs], str] | None = None,
        logging_mode: IPUOutfeedMode = IPUOutfeedMode.LAST,
    ) -> None:
        check_intervals(at_end, every_n_iter=every_n_iter, every_n_secs=every_n_secs)
        keep: Keep = "all" if IPUOutfeedMode(logging_mode) is IPUOutfeedMode.ALL else "last"
        super().__init__(every_n_iter, every_n_secs, at_end, keep=keep, formatter=formatter)
        self.tensors: dict[str, keras.KerasTensor] = {}

    def log(self, values: PyTree) -> LogOp:
        """Log tensors: one, a list, or a dict. Call it once per hook, in the model function.

        Returns:
            An operation for the spec's `train_op`, in addition to the optimizer.

        Raises:
            RuntimeError: if it was called before.
        """
        if self.tensors:
            raise RuntimeError("log() was called before on this hook. Make a hook for each call.")
        if not isinstance(values, dict):
            values = {tensor.name: tensor for tensor in as_list(values)}
        self.tensors = dict(values)
        return LogOp(self)

    def key(self, name: str) -> str:
        """Return the name of a tensor among those of all hooks."""
        return f"{id(self)}.{name}"

    def begin(self, run: Run) -> None:
        if not self.tensors:
            raise RuntimeError("log() was never called on this hook. Put its result into train_op.")
        super().begin(run)

    def _count(self, run: Run) -> int:
        return self._executions

    def _values(self, run: Run) -> Logs:
        return {name: run.values[self.key(name)] for name in self.tensors}
