"""What every optimizer has that goes around another one."""

from __future__ import annotations

from typing import Any, Self

import keras


class Around(keras.optimizers.Optimizer):
    """Goes around an optimizer, whose learning rate, iterations and state are its own.

    Args:
        optimizer: any Keras optimizer that does not scale the loss.
        name: of this one.

    Raises:
        ValueError: if the optimizer scales the loss: nobody would tell it to.
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
                f"{optimizer.loss_scale_factor}, which divides gradients of a loss that nobody has "
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
        self, grads: list[Any], trainable_variables: list[keras.Variable] | None = None
    ) -> None:
        """Update the weights."""
        if not self.built:
            self.build(list(trainable_variables or []))
        self.update(grads, list(trainable_variables or self._trainable_variables))

    def update(self, grads: list[Any], variables: list[keras.Variable]) -> None:
        """Have the optimizer inside update the weights, with what this one does around it."""
        raise NotImplementedError

    @property
    def variables(self) -> list[keras.Variable]:
        """Those of the optimizer inside."""
        return self.optimizer.variables

    @property
    def learning_rate(self) -> Any:
        return self.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        return self.optimizer.iterations

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        self.optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        return {
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        optimizer = keras.saving.deserialize_keras_object(
            config["optimizer"], custom_objects=custom_objects
        )
        return cls(**(config | {"optimizer": optimizer}))
