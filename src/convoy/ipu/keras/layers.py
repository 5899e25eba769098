"""Wrapper layers that capture gradients for automatic loss scaling."""

from typing import Any

import keras
from convoy import context
from convoy.engine.step.gradients import captured
from convoy.types import PyTree


class _CaptureGradients(keras.layers.Wrapper):
    """A wrapper with the tag under which it captures a gradient."""

    suffix = ""

    def __init__(self, layer: keras.layers.Layer, tag: str | None = None, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.tag = tag or layer.name + self.suffix

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"tag": self.tag}


@keras.saving.register_keras_serializable(package="convoy")
class CaptureUpstreamGradients(_CaptureGradients):
    """Captures the gradient of a layer's output.

    Args:
        layer: a layer that returns one tensor.
        tag: key of the captured gradient; by default the layer's name and `_cug`.
    """

    suffix = "_cug"

    def call(self, inputs: PyTree) -> PyTree:
        return captured(self.layer(inputs), self.tag)


@keras.saving.register_keras_serializable(package="convoy")
class CaptureActivationGradients(_CaptureGradients):
    """Captures the gradient of the input of a layer's activation.

    Args:
        layer: a layer with an activation.
        tag: key of the captured gradient; by default the layer's name and `_cag`.

    Raises:
        ValueError: if the layer has no activation.
    """

    suffix = "_cag"

    def __init__(self, layer: keras.layers.Layer, tag: str | None = None, **kwargs: Any) -> None:
        super().__init__(layer, tag, **kwargs)
        if not callable(getattr(layer, "activation", None)):
            raise ValueError(f"{layer.name!r} has no activation. Use CaptureUpstreamGradients.")

    def call(self, inputs: PyTree) -> PyTree:
        layer, activation = self.layer, self.layer.activation
        with context.changed([(layer, "activation", lambda x: activation(captured(x, self.tag)))]):
            return layer(inputs)
