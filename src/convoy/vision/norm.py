"""Which layers normalise, and how their statistics advance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import layers, ops

Replace = Callable[[Any], Any]

NAMES = ("batch_norm", "custom_batch_norm", "group_norm")


@keras.saving.register_keras_serializable(package="convoy")
class UpdateBatchNormalization(layers.BatchNormalization):
    """Batch normalisation whose moving statistics advance by one step per weight update.

    After the micro-batches of an update they are `momentum` times the old ones and `1 - momentum`
    times the mean of the micro-batches' own. With one micro-batch this is
    `keras.layers.BatchNormalization`.

    Args:
        micro_batches: in a weight update.
        **kwargs: those of `keras.layers.BatchNormalization`.
    """

    momentum: Any

    def __init__(self, micro_batches: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.micro_batches = micro_batches

    def build(self, input_shape: tuple) -> None:
        super().build(input_shape)
        self.position = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="position"
        )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        if not training or not self.trainable or self.micro_batches == 1:
            return super().call(inputs, training=training, mask=mask)
        # In a mean that is made step by step, the old value counts for what it is made of.
        each = (1.0 - self.momentum) / self.micro_batches
        before = self.momentum + each * ops.cast(self.position, "float32")
        whole, self.momentum = self.momentum, before / (before + each)
        try:
            outputs = super().call(inputs, training=training, mask=mask)
        finally:
            self.momentum = whole
        self.position.assign((self.position + 1) % self.micro_batches)
        return outputs

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"micro_batches": self.micro_batches}


def check_norm(settings: Mapping[str, Any]) -> None:
    """Refuse a `--norm-layer` that cannot be made.

    Raises:
        ValueError: if the name or a parameter is unknown, or one is missing.
    """
    name = settings.get("name")
    known = {
        "batch_norm": {"name", "momentum"},
        "custom_batch_norm": {"name", "momentum"},
        "group_norm": {"name", "num_groups", "channels_per_group"},
    }
    if name not in known:
        raise ValueError(
            f"--norm-layer: name {name!r} is not one of {', '.join(NAMES)}. Pass for example "
            '\'{"name": "batch_norm"}\'.'
        )
    if extra := set(settings) - known[name]:
        raise ValueError(f"--norm-layer: {name} has no parameter {', '.join(sorted(extra))}.")
    if name == "custom_batch_norm" and "momentum" not in settings:
        raise ValueError("--norm-layer: custom_batch_norm needs a momentum, such as 0.97.")
    if name == "group_norm" and ("num_groups" in settings) == ("channels_per_group" in settings):
        raise ValueError(
            "--norm-layer: group_norm needs num_groups or channels_per_group, not both."
        )


def norm_replacement(settings: Mapping[str, Any], micro_batches: int) -> Replace | None:
    """Return what puts the chosen layer in the place of a batch normalisation, if need be.

    Args:
        settings: what `--norm-layer` says, checked.
        micro_batches: per weight update, of one replica.
    """
    if settings["name"] == "batch_norm":
        return None

    def replace(layer: Any) -> Any:
        if type(layer) is not layers.BatchNormalization:
            return layer
        config = layer.get_config()
        if settings["name"] == "custom_batch_norm":
            config |= {"momentum": settings["momentum"], "micro_batches": micro_batches}
            return UpdateBatchNormalization.from_config(config)
        groups = settings.get("num_groups")
        if groups is None:
            groups = max(1, layer.gamma.shape[-1] // settings["channels_per_group"])
        kept = ("axis", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer")
        return layers.GroupNormalization(
            groups,
            name=layer.name.replace("bn", "gn"),
            dtype=layer.dtype_policy,
            **{name: config[name] for name in kept},
        )

    return replace
