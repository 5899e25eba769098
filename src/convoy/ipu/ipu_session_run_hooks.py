"""Hooks for estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convoy.estimator.hooks import LoggingHook, Run
from convoy.ipu.ipu_outfeed_queue import IPUOutfeedMode
from convoy.ipu.train_op import LogOp


class IPULoggingTensorHook(LoggingHook):
    """Logs tensors of the device loop.

    Args:
        every_n_iter: device calls between two lines of the log.
        every_n_secs: or seconds.
        at_end: whether the end of the run is logged too.
        formatter: makes the line from a dict of values.
        logging_mode: `IPUOutfeedMode.LAST` logs the last value, `ALL` an array of all values
            since the line before.

    Raises:
        ValueError: unless one of the two distances is given, or `at_end`.

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
        formatter: Callable[[dict[str, Any]], str] | None = None,
        logging_mode: IPUOutfeedMode = IPUOutfeedMode.LAST,
    ) -> None:
        if (every_n_iter is None) == (every_n_secs is None) and (every_n_iter or not at_end):
            raise ValueError(
                f"every_n_iter={every_n_iter} and every_n_secs={every_n_secs}: pass one of them, "
                "or at_end=True alone."
            )
        keeps_all = IPUOutfeedMode(logging_mode) is IPUOutfeedMode.ALL
        super().__init__(
            every_n_iter,
            every_n_secs,
            at_end,
            keep="all" if keeps_all else "last",
            formatter=formatter,
        )
        self.tensors: dict[str, Any] = {}
        """By the names under which they are logged."""

    def log(self, values: Any) -> LogOp:
        """Have tensors logged: one, a list, or a dict; in a model function, once for each hook.

        Returns:
            What is to be in the spec's `train_op`, beside the optimizer.

        Raises:
            RuntimeError: if it was called before.
        """
        if self.tensors:
            raise RuntimeError("log() was called before on this hook. Make a hook for each call.")
        if not isinstance(values, dict):
            values = {v.name: v for v in (values if isinstance(values, list) else [values])}
        self.tensors = dict(values)
        return LogOp(self)

    def key(self, name: str) -> str:
        """Return the name of a tensor among those of all hooks."""
        return f"{id(self)}.{name}"

    def begin(self, run: Run) -> None:
        if not self.tensors:
            raise RuntimeError(
                "log() was never called on this IPULoggingTensorHook. Call it in the model "
                "function, and put what it returns into train_op."
            )
        super().begin(run)

    def _now(self, run: Run) -> int:
        del run
        return self._executions

    def _values(self, run: Run) -> dict[str, Any]:
        return {name: run.values[self.key(name)] for name in self.tensors}
