"""The optimizer of a run, with regularisation, gradient clipping and Lookahead."""

from collections.abc import Callable
from typing import Any

import convoy
import keras
from convoy.train.flags import Options
from convoy.train.learning_rate import Schedule, check_keys

_ADAM = ("beta_1", "beta_2", "epsilon", "amsgrad")
# Each with the required and the optional keys of `--optimizer-params`.
_OPTIMIZERS: dict[str, tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]] = {
    "sgd": (keras.optimizers.SGD, ("momentum",), ("nesterov",)),
    "lars": (convoy.optimizers.LARS, ("momentum", "weight_decay", "eeta", "epsilon"), ()),
    "rmsprop": (keras.optimizers.RMSprop, ("momentum", "base_decay_exponent", "epsilon"), ()),
    "adam": (keras.optimizers.Adam, (), _ADAM),
    "adamw": (keras.optimizers.AdamW, (), (*_ADAM, "weight_decay")),
}


def make_optimizer(
    options: Options, schedule: Schedule, batch: int, updates: int
) -> keras.optimizers.Optimizer:
    """Return the optimizer of a run.

    Args:
        options: options of the run.
        schedule: learning-rate schedule.
        batch: number of samples per weight update.
        updates: number of weight updates of the run.

    Raises:
        ValueError: if one of its parameters is missing or unknown.
    """
    # Keras does not accept a momentum of type int.
    params: dict[str, Any] = {
        name: float(value) if type(value) is int else value
        for name, value in options.optimizer_params.items()
    }
    if options.optimizer in ("adam", "adamw"):
        if options.momentum is not None:
            raise ValueError(
                f"--momentum has no effect on --optimizer {options.optimizer}. Pass beta_1 in "
                "--optimizer-params."
            )
        # The default of `--optimizer-params` has one.
        params.pop("momentum", None)
    elif options.momentum is not None:
        params["momentum"] = options.momentum
    make, needed, optional = _OPTIMIZERS[options.optimizer]
    check_keys("--optimizer-params", params, needed, {*needed, *optional})
    if options.optimizer == "rmsprop":
        params["rho"] = _rho(params.pop("base_decay_exponent"), batch)
    if options.clip_norm is not None:
        params["global_clipnorm"] = options.clip_norm
    if options.ema:
        params |= {"use_ema": True, "ema_momentum": options.ema}
    optimizer = make(schedule, **params)
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


def _rho(exponent: float, batch: int) -> float:
    """Return the decay of RMSprop's moving average for a batch size."""
    decay = 2.0**exponent * batch
    if not 0 <= decay <= 1:
        raise ValueError(
            f"--optimizer-params: 2^{exponent} x a batch of {batch} is {decay:g}, so RMSprop's rho "
            f"would be {1 - decay:g}. Pass a lower exponent."
        )
    return 1 - decay
