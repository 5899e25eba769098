"""The optimizer of a run, with regularisation and clipping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import convoy
import keras
from convoy.train.learning_rate import Schedule, check_keys
from convoy.train.options import Options

_NEEDS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum",),
    "lars": ("momentum", "weight_decay", "eeta", "epsilon"),
    "rmsprop": ("momentum", "base_decay_exponent", "epsilon"),
    "adam": (),
    "adamw": (),
}
_MAY_HAVE = {
    "sgd": {"nesterov"},
    "lars": set(),
    "rmsprop": set(),
    "adam": {"beta_1", "beta_2", "epsilon", "amsgrad"},
    "adamw": {"beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay"},
}
# `--optimizer-params` has a momentum by default, which these have no use for.
_WITHOUT_MOMENTUM = ("adam", "adamw")


def make_optimizer(
    options: Options, schedule: Schedule, batch: int, updates: int
) -> keras.optimizers.Optimizer:
    """Return the optimizer, inside of weight decay, L2 regularisation and lookahead.

    Args:
        options: of the run.
        schedule: the learning rate.
        batch: samples in a weight update.
        updates: of the whole run.

    Raises:
        ValueError: if one of its parameters is missing or unknown.
    """
    # Keras takes no whole number for a momentum.
    params = {
        name: float(value) if type(value) is int else value
        for name, value in options.optimizer_params.items()
    }
    if options.optimizer in _WITHOUT_MOMENTUM:
        params.pop("momentum", None)
    needed = _NEEDS[options.optimizer]
    check_keys("--optimizer-params", params, needed, {*needed, *_MAY_HAVE[options.optimizer]})
    common: dict[str, Any] = {}
    if options.clip_norm is not None:
        common["global_clipnorm"] = options.clip_norm
    if options.ema:
        common |= {"use_ema": True, "ema_momentum": options.ema}
    optimizer = _make(options.optimizer, params, schedule, batch, common)
    if options.l2_regularization or options.weight_decay or options.adaptive_clip:
        optimizer = convoy.optimizers.Regularized(
            optimizer,
            l2=options.l2_regularization,
            weight_decay=options.weight_decay,
            clip=options.adaptive_clip,
        )
    if options.lookahead:
        return convoy.optimizers.Lookahead(optimizer, updates, options.lookahead)
    return optimizer


def _make(
    name: str, params: Mapping[str, Any], schedule: Schedule, batch: int, common: Mapping[str, Any]
) -> keras.optimizers.Optimizer:
    if name == "lars":
        return convoy.optimizers.LARS(schedule, **params, **common)
    if name == "rmsprop":
        decay = 2.0 ** params["base_decay_exponent"] * batch
        if not 0 <= decay <= 1:
            raise ValueError(
                f"--optimizer-params: 2^{params['base_decay_exponent']} x a batch of {batch} is "
                f"{decay:g}, so RMSprop's rho would be {1 - decay:g}. Pass a lower exponent."
            )
        return keras.optimizers.RMSprop(
            schedule,
            rho=1 - decay,
            momentum=params["momentum"],
            epsilon=params["epsilon"],
            **common,
        )
    make = {
        "sgd": keras.optimizers.SGD,
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
    }[name]
    return make(schedule, **params, **common)
