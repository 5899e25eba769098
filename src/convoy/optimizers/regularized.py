"""L2 regularisation, weight decay and adaptive clipping for every optimizer."""

from __future__ import annotations

from typing import Any

import keras
from convoy.optimizers.wrapper import Around
from keras import ops

SMALLEST_WEIGHT = 1e-3
TINY = 1e-6


@keras.saving.register_keras_serializable(package="convoy")
class Regularized(Around):
    """Puts L2 regularisation, weight decay or adaptive clipping around any optimizer.

    With `O` the optimizer, `s` its state and `lr` its learning rate at this update:

    - `l2`: `W = W - lr * O(dL/dW + l2 * W, s)`: goes through the optimizer's state;
    - `weight_decay`: `W = W - lr * (O(dL/dW, s) + weight_decay * W)`: goes past it, and follows the
      schedule of the learning rate.

    Both hold for all weights, biases and normalisation included, and do not show in the loss that
    is reported. (A layer's `kernel_regularizer="l2"` is part of the loss, and `l2=r` here is
    `regularizers.L2(r / 2)` there.) Keras's own `SGD(weight_decay=...)` and so on are this
    `weight_decay`, up to rounding; `exclude_from_weight_decay` works here too.

    `clip` limits the gradient of each output of a layer to so many times the norm of the weights
    that make it, before anything else is done with it: of a kernel, each slice along its last axis;
    of a bias or scale, all of it. Reference: Brock et al., "High-Performance Large-Scale Image
    Recognition Without Normalization", 2021.

    Args:
        optimizer: any Keras optimizer. It clips gradients after `l2` has been added.
        l2: the coefficient of L2 regularisation.
        weight_decay: the coefficient of weight decay.
        clip: the largest gradient as a share of the weights; 0 is any.
        name: of the optimizer.

    Example:
    ```python
    optimizer = convoy.optimizers.Regularized(keras.optimizers.SGD(0.1, momentum=0.9), l2=1e-4)
    ```
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        l2: float = 0.0,
        weight_decay: float = 0.0,
        clip: float = 0.0,
        name: str = "regularized",
    ) -> None:
        for argument, value in {"l2": l2, "weight_decay": weight_decay, "clip": clip}.items():
            if value < 0:
                raise ValueError(f"Regularized({argument}={value}): pass 0 or more.")
        if weight_decay and optimizer.gradient_accumulation_steps:
            raise ValueError(
                f"Regularized(weight_decay={weight_decay}) would decay the weights in each of the "
                f"{optimizer.gradient_accumulation_steps} steps that the optimizer accumulates. "
                "Pass weight_decay to the optimizer itself."
            )
        super().__init__(optimizer, name)
        self.l2 = l2
        self.decay = weight_decay
        self.clip = clip

    def update(self, grads: list[Any], variables: list[keras.Variable]) -> None:
        """Regularise, then have the optimizer inside update the weights."""
        pairs = zip(grads, variables, strict=True)
        grads = [self._with_l2(self._clipped(g, variable), variable) for g, variable in pairs]
        if self.decay:
            for variable in variables:
                self._shrink(variable)
        self.optimizer.apply(grads, variables)

    def _clipped(self, gradient: Any, variable: keras.Variable) -> Any:
        if not self.clip or gradient is None:
            return gradient
        wide = ops.cast(gradient, "float32")
        # A weight of zero could never change.
        largest = self.clip * ops.maximum(_norms(variable), SMALLEST_WEIGHT)
        norms = _norms(wide)
        return ops.where(norms > largest, wide * (largest / ops.maximum(norms, TINY)), wide)

    def _with_l2(self, gradient: Any, variable: keras.Variable) -> Any:
        if not self.l2 or gradient is None:
            return gradient
        # In float32: the sum of a gradient and of a small part of a weight is lost in 16 bits.
        return ops.cast(gradient, "float32") + self.l2 * ops.cast(variable, "float32")

    def _shrink(self, variable: keras.Variable) -> None:
        if self._use_weight_decay(variable):
            wide = ops.cast(variable, "float32")
            share = ops.cast(self.learning_rate, "float32") * self.decay
            self.assign(variable, ops.cast(wide - wide * share, variable.dtype))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"l2": self.l2, "weight_decay": self.decay, "clip": self.clip}


def _norms(value: Any) -> Any:
    """Return the norm of what makes each output, in a form that broadcasts with it."""
    axes = tuple(range(len(value.shape) - 1)) or None
    square = ops.square(ops.cast(value, "float32"))
    return ops.sqrt(ops.sum(square, axis=axes, keepdims=True))
