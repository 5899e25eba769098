"""L2 regularisation, weight decay and adaptive gradient clipping for any optimizer."""

import keras
from convoy.optimizers.wrapper import OptimizerWrapper
from convoy.types import Json, Tensor
from keras import ops

MIN_WEIGHT_NORM = 1e-3
TINY = 1e-6


@keras.saving.register_keras_serializable(package="convoy")
class Regularized(OptimizerWrapper):
    """Adds L2 regularisation, weight decay or adaptive gradient clipping to any optimizer.

    With `O` the optimizer, `s` its state and `lr` its learning rate at this update:

    - `l2`: `W = W - lr * O(dL/dW + l2 * W, s)`. It passes through the optimizer's state.
    - `weight_decay`: `W = W - lr * (O(dL/dW, s) + weight_decay * W)`. It is decoupled from the
      optimizer's state, and follows the schedule of the learning rate.

    Both apply to all weights, biases and normalisation included, and are not part of the reported
    loss. (A layer's `kernel_regularizer="l2"` is part of the loss, and `l2=r` here is
    `regularizers.L2(r / 2)` there.) Keras's own `SGD(weight_decay=...)` and so on are this
    `weight_decay`, up to rounding; `exclude_from_weight_decay` works here too.

    `clip` limits the norm of the gradient to `clip` times the norm of the weights, before anything
    else: separately for each output of a kernel (each slice along its last axis), and as a whole
    for a bias or a scale. Reference: Brock et al., "High-Performance Large-Scale Image
    Recognition Without Normalization", 2021.

    Args:
        optimizer: any Keras optimizer. Its own clipping comes after `l2` has been added.
        l2: coefficient of L2 regularisation.
        weight_decay: coefficient of weight decay.
        clip: maximum ratio of the gradient's norm to that of the weights; 0 for no limit.
        name: name of the optimizer.

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

    def update(self, grads: list[Tensor], variables: list[keras.Variable]) -> None:
        """Regularise, then update the weights by the wrapped optimizer."""
        pairs = zip(grads, variables, strict=True)
        grads = [self._with_l2(self._clipped(g, variable), variable) for g, variable in pairs]
        if self.decay:
            for variable in variables:
                self._shrink(variable)
        self.optimizer.apply(grads, variables)

    def _clipped(self, gradient: Tensor, variable: keras.Variable) -> Tensor:
        if not self.clip or gradient is None:
            return gradient
        wide = ops.cast(gradient, "float32")
        # Without a minimum, weights of zero could never change.
        largest = self.clip * ops.maximum(_norms(variable), MIN_WEIGHT_NORM)
        norms = _norms(wide)
        return ops.where(norms > largest, wide * (largest / ops.maximum(norms, TINY)), wide)

    def _with_l2(self, gradient: Tensor, variable: keras.Variable) -> Tensor:
        if not self.l2 or gradient is None:
            return gradient
        # In float32: a small fraction of a weight would be lost in a sum of 16 bits.
        return ops.cast(gradient, "float32") + self.l2 * ops.cast(variable, "float32")

    def _shrink(self, variable: keras.Variable) -> None:
        if self._use_weight_decay(variable):
            wide = ops.cast(variable, "float32")
            fraction = ops.cast(self.learning_rate, "float32") * self.decay
            self.assign(variable, ops.cast(wide - wide * fraction, variable.dtype))

    def get_config(self) -> Json:
        return super().get_config() | {"l2": self.l2, "weight_decay": self.decay, "clip": self.clip}


def _norms(value: Tensor) -> Tensor:
    """Return the norm of each output's weights, in a shape that broadcasts with them."""
    axes = tuple(range(len(value.shape) - 1)) or None
    square = ops.square(ops.cast(value, "float32"))
    return ops.sqrt(ops.sum(square, axis=axes, keepdims=True))
