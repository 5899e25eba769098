"""The base class of optimizers that wrap another optimizer: `Lookahead` and `Regularized`."""

from collections.abc import Sequence
from typing import Self

import keras
from convoy.types import Json, Tensor


class OptimizerWrapper(keras.optimizers.Optimizer):
    """An optimizer around another one, whose learning rate, iterations and state it shares.

    Subclasses implement `update`.

    Args:
        optimizer: any Keras optimizer that does not scale the loss.
        name: name of the wrapper.

    Raises:
        ValueError: if the optimizer scales the loss, which has no effect inside a wrapper.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, name: str) -> None:
        own = type(self).__name__
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                f"{own}() received a LossScaleOptimizer, whose gradients are still scaled. "
                f"Put {own} inside: LossScaleOptimizer({own}(optimizer))."
            )
        if optimizer.loss_scale_factor is not None:
            raise ValueError(
                f"{own}() received an optimizer with loss_scale_factor="
                f"{optimizer.loss_scale_factor}, which divides gradients of a loss that was not "
                "scaled. Leave it out, and pass loss_scale to convoy.Strategy."
            )
        super().__init__(learning_rate=0.0, name=name)
        self.optimizer = optimizer

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        self.optimizer.build(variables)
        super().build(variables)

    def apply(
        self, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> None:
        """Update the weights."""
        if not self.built:
            self.build(list(trainable_variables or []))
        self.update(list(grads), list(trainable_variables or self._trainable_variables))

    def update(self, grads: list[Tensor], variables: list[keras.Variable]) -> None:
        """Update the weights by the wrapped optimizer, and do the wrapper's own work."""
        raise NotImplementedError

    @property
    def variables(self) -> list[keras.Variable]:
        """Variables of the wrapped optimizer."""
        return self.optimizer.variables

    @property
    def learning_rate(self) -> Tensor:
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Tensor) -> None:
        self.optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> keras.Variable:
        return self.optimizer.iterations

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        self.optimizer.finalize_variable_values(var_list)

    def get_config(self) -> Json:
        return {"optimizer": keras.saving.serialize_keras_object(self.optimizer), "name": self.name}

    @classmethod
    def from_config(cls, config: Json, custom_objects: Json | None = None) -> Self:
        optimizer = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        return cls(**(config | {"optimizer": optimizer}))
