"""Layers around others, which capture gradients for automatic loss scaling."""

from __future__ import annotations

from typing import Any

import keras
from convoy.engine.step.gradients import captured


@keras.saving.register_keras_serializable(package="convoy")
class CaptureUpstreamGradients(keras.layers.Wrapper):
    """Captures the gradient that comes back to what a layer returns.

    Args:
        layer: any layer that returns one tensor.
        tag: under which it is captured; by default the layer's name and `_cug`.
    """

    def __init__(self, layer: keras.layers.Layer, tag: str | None = None, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.tag = tag or f"{layer.name}_cug"

    def call(self, inputs: Any) -> Any:
        return captured(self.layer(inputs), self.tag)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"tag": self.tag}


@keras.saving.register_keras_serializable(package="convoy")
class CaptureActivationGradients(keras.layers.Wrapper):
    """Captures the gradient that comes back to what a layer's activation takes.

    Args:
        layer: one that has an activation.
        tag: under which it is captured; by default the layer's name and `_cag`.

    Raises:
        ValueError: if the layer has no activation.
    """

    def __init__(self, layer: keras.layers.Layer, tag: str | None = None, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        if not callable(getattr(layer, "activation", None)):
            raise ValueError(
                f"{layer.name!r} has no activation whose gradient could be captured. Use "
                "CaptureUpstreamGradients."
            )
        self.tag = tag or f"{layer.name}_cag"

    def call(self, inputs: Any) -> Any:
        layer, activation = self.layer, self.layer.activation
        layer.activation = lambda x: activation(captured(x, self.tag))
        try:
            return layer(inputs)
        finally:
            layer.activation = activation

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"tag": self.tag}
