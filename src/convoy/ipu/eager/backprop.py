"""Differentiation that also returns captured gradients."""

from collections.abc import Callable
from typing import Self

from convoy.engine.step.gradients import value_and_gradients
from convoy.types import PyTree


class GradientCaptureContext:
    """Differentiates functions that use `capture_upstream_gradients`.

    There is no tape: the function is passed to `gradient`.

    Example:
    ```python
    with ipu.eager.backprop.GradientCaptureContext() as context:
        gradient = context.gradient(loss_of, weights)
    context.captured_gradients["tanh"]
    ```
    """

    def __init__(self) -> None:
        self.captured_gradients: dict[str, PyTree] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def gradient(self, function: Callable[..., PyTree], values: PyTree, *args: PyTree) -> PyTree:
        """Return the gradient of a function with respect to its first argument.

        Args:
            function: a function that returns a scalar.
            values: its first argument: an array, or a list or dict of arrays.
            *args: its other arguments.
        """
        _, gradients, self.captured_gradients = value_and_gradients(
            lambda *given: (function(*given), None), values, *args
        )
        return gradients


GradientCaptureTape = GradientCaptureContext
