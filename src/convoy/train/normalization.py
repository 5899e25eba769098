"""The normalisation layers of `--norm-layer`."""

from collections.abc import Callable, Mapping
from typing import Any

from convoy.layers import UpdateBatchNormalization
from keras import layers

Replace = Callable[[layers.Layer], layers.Layer]

# The parameters of each kind.
KINDS = {
    "batch_norm": {"name", "momentum"},
    "custom_batch_norm": {"name", "momentum"},
    "group_norm": {"name", "num_groups", "channels_per_group"},
}
_COMMON = ("axis", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer")


def check_norm_layer(norm_layer: Mapping[str, Any]) -> None:
    """Check the value of `--norm-layer`.

    Raises:
        ValueError: if the name or a parameter is unknown, or one is missing.
    """
    name = norm_layer.get("name")
    if name not in KINDS:
        raise ValueError(
            f"--norm-layer: name {name!r} is not one of {', '.join(KINDS)}. Pass for example "
            '\'{"name": "batch_norm"}\'.'
        )
    if extra := set(norm_layer) - KINDS[name]:
        raise ValueError(
            f"--norm-layer: {name} has no parameter {', '.join(sorted(extra))}. It has "
            f"{', '.join(sorted(KINDS[name]))}."
        )
    if name == "custom_batch_norm" and "momentum" not in norm_layer:
        raise ValueError("--norm-layer: custom_batch_norm needs a momentum, such as 0.97.")
    if name == "group_norm" and len(norm_layer) != 2:
        raise ValueError(
            "--norm-layer: group_norm needs one of num_groups and channels_per_group. Pass one."
        )


def norm_replacement(norm_layer: Mapping[str, Any], micro_batches: int) -> Replace | None:
    """Return the function that replaces batch-normalisation layers, if they are to be replaced.

    Args:
        norm_layer: value of `--norm-layer`.
        micro_batches: number of micro-batches per replica and weight update.
    """
    if norm_layer["name"] == "batch_norm":
        return None

    def replace(layer: layers.Layer) -> layers.Layer:
        if type(layer) is not layers.BatchNormalization:
            return layer
        config = layer.get_config()
        if norm_layer["name"] == "custom_batch_norm":
            config |= {"momentum": norm_layer["momentum"], "micro_batches": micro_batches}
            return UpdateBatchNormalization.from_config(config)
        groups = norm_layer.get("num_groups")
        if groups is None:
            groups = max(1, layer.moving_mean.shape[-1] // norm_layer["channels_per_group"])
        return layers.GroupNormalization(
            groups,
            name=layer.name.replace("bn", "gn"),
            dtype=layer.dtype_policy,
            **{name: config[name] for name in _COMMON},
        )

    return replace
