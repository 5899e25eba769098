"""Differentiation with gradients that are captured on their way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from convoy.engine.step.gradients import value_and_gradients


class GradientCaptureContext:
    """Differentiates functions that use `capture_upstream_gradients`.

    There is no tape: the function is handed over.

    Example:
    ```python
    with ipu.eager.backprop.GradientCaptureContext() as context:
        gradient = context.gradient(loss_of, weights)
    context.captured_gradients["tanh"]
    ```
    """

    def __init__(self) -> None:
        self.captured_gradients: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def gradient(self, function: Callable[..., Any], values: Any, *args: Any) -> Any:
        """Return the gradient of a function by its first argument, and capture others.

        Args:
            function: returns a number.
            values: its first argument: an array, or a list or dict of them.
            *args: its others.
        """
        _, gradients, self.captured_gradients = value_and_gradients(
            lambda *given: (function(*given), None), values, *args
        )
        return gradients


GradientCaptureTape = GradientCaptureContext
