"""LARS: stochastic gradient descent with a step size for each layer, relative to its weights."""

import re
from collections.abc import Sequence

import keras
from convoy.types import Json, Tensor
from keras import ops


@keras.saving.register_keras_serializable(package="convoy")
class LARS(keras.optimizers.Optimizer):
    """Stochastic gradient descent with momentum and a trust ratio for each weight (LARS).

    With `W` a weight and `g` its gradient:

    ```
    trust = eeta * |W| / (|g| + weight_decay * |W| + epsilon)   (1 if |W| or |g| is 0)
    m     = momentum * m + learning_rate * trust * (g + weight_decay * W)
    W     = W - m
    ```

    Weights whose name contains a word of `exclude` have `trust = 1` and no decay. Norms are
    computed in float32.

    Args:
        learning_rate: a number, a schedule or a callable.
        momentum: momentum of the steps, from 0 to 1.
        weight_decay: coefficient of weight decay as part of the gradient. The `weight_decay` of
            Keras's optimizers is another one: it bypasses the momentum and the trust ratio.
        eeta: the trust coefficient.
        epsilon: summand that keeps the ratio finite; 0 stands for 1e-7.
        exclude: words in the names of the weights that are excluded.
        name: name of the optimizer.
        **kwargs: arguments of `keras.optimizers.Optimizer`, such as `clipnorm`.

    Reference: You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017.
    """

    def __init__(
        self,
        learning_rate: Tensor = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        exclude: Sequence[str] = ("beta", "gamma", "bias"),
        name: str = "lars",
        **kwargs: object,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        limits = {"weight_decay": weight_decay, "eeta": eeta, "epsilon": epsilon}
        for argument, value in limits.items():
            if value < 0:
                raise ValueError(f"LARS({argument}={value}): pass 0 or more.")
        if not 0 <= momentum <= 1:
            raise ValueError(f"LARS(momentum={momentum}): pass a number from 0 to 1.")
        self.momentum = momentum
        self.layer_decay = weight_decay
        self.eeta = eeta
        self.epsilon = epsilon
        self.exclude = tuple(exclude)

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        wide, gradient = ops.cast(variable, "float32"), ops.cast(gradient, "float32")
        learning_rate = ops.cast(learning_rate, "float32")
        if not self._is_excluded(variable):
            trust = self._trust(wide, gradient)
            gradient = trust * (gradient + self.layer_decay * wide)
        steps = self.momentums[self._get_variable_index(variable)]
        new = self.momentum * ops.cast(steps, "float32") + learning_rate * gradient
        self.assign(steps, ops.cast(new, variable.dtype))
        self.assign(variable, ops.cast(wide - new, variable.dtype))

    def _trust(self, weight: Tensor, gradient: Tensor) -> Tensor:
        weight_norm, gradient_norm = ops.norm(weight), ops.norm(gradient)
        divisor = gradient_norm + self.layer_decay * weight_norm + (self.epsilon or 1e-7)
        ratio = self.eeta * weight_norm / divisor
        return ops.where((weight_norm > 0) & (gradient_norm > 0), ratio, 1.0)

    def _is_excluded(self, variable: keras.Variable) -> bool:
        return any(re.search(word, variable.name) for word in self.exclude)

    def get_config(self) -> Json:
        return super().get_config() | {
            "momentum": self.momentum,
            "weight_decay": self.layer_decay,
            "eeta": self.eeta,
            "epsilon": self.epsilon,
            "exclude": list(self.exclude),
        }
