"""Which layers normalise, as `--norm-layer` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from convoy.layers import UpdateBatchNormalization
from keras import layers

Replace = Callable[[Any], Any]

NAMES = ("batch_norm", "custom_batch_norm", "group_norm")


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
            groups = max(1, layer.moving_mean.shape[-1] // settings["channels_per_group"])
        kept = ("axis", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer")
        return layers.GroupNormalization(
            groups,
            name=layer.name.replace("bn", "gn"),
            dtype=layer.dtype_policy,
            **{name: config[name] for name in kept},
        )

    return replace
