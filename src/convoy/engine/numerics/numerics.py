"""What a strategy says about the numbers of a weight update, and what a run carries on for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.engine.numerics.loss_scale import LossScale, Scaling
from convoy.precision import Precision

Arrays = list[jax.Array]
StochasticRounding = Literal["off", "on", "replica_identical"]

FACTOR = "loss_scaling_factor"
SKIPPED = "skipped_updates"
REPORTED = (FACTOR, SKIPPED)

_KEY_TYPE = "threefry2x32"


@dataclass(frozen=True)
class Settings:
    """What a strategy says about numbers.

    Attributes:
        precision: in what its models compute and are updated; `None` leaves that to Keras.
        loss_scale: how the loss is scaled; `None` leaves that to Keras.
        stochastic_rounding: whether the update of 16-bit weights is rounded by chance.
    """

    precision: Precision | None = None
    loss_scale: LossScale | None = None
    stochastic_rounding: StochasticRounding = "off"

    def __post_init__(self) -> None:
        words = get_args(StochasticRounding)
        if self.stochastic_rounding not in words:
            raise ValueError(
                f"stochastic_rounding={self.stochastic_rounding!r} is not a way to round. "
                f"Pass one of {', '.join(map(repr, words))}."
            )

    @property
    def rounds(self) -> bool:
        return self.stochastic_rounding != "off"

    @property
    def active(self) -> bool:
        return self.loss_scale is not None or self.rounds


class Numerics:
    """The settings for one model, with the variables that its training carries on.

    `State.numerics` holds the values of these variables: those of `Scaling`, then a random key.
    Where nothing is set there are none, and a program is what it would be without this file.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._variables: list[keras.Variable] | None = None

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables, for a checkpoint to keep; a saved model stays plain Keras without them."""
        if not self.settings.active:
            return []
        if self._variables is None:
            self._variables = _make_variables(self.settings.loss_scale)
        return self._variables

    @property
    def scaling(self) -> Scaling | None:
        """How far loss scaling has come, as plain numbers; `None` if the strategy has none."""
        if self.settings.loss_scale is None:
            return None
        *scaling, _ = self.variables
        return Scaling(*(np.asarray(variable.value).item() for variable in scaling))

    def logs(self, numerics: Arrays) -> dict[str, Any]:
        """Return what training reports beside the metrics."""
        if self.settings.loss_scale is None or not numerics:
            return {}
        scaling, _ = unpack(numerics)
        return {FACTOR: scaling.factor, SKIPPED: scaling.skipped}

    def factor(self, numerics: Arrays) -> jax.Array | None:
        """Return what the loss of a micro-batch is multiplied by."""
        return unpack(numerics)[0].factor if self.settings.loss_scale else None

    def count(self, numerics: Arrays, gradients: Arrays, captured: Arrays) -> Arrays:
        """Take the statistics of the gradients of one micro-batch on one replica.

        Args:
            numerics: the state.
            gradients: of the weights.
            captured: of tensors that a layer captures.

        Replicas add up what this adds: all else in `State.numerics` is the same on each of them.
        """
        if self.settings.loss_scale is None:
            return numerics
        scaling, key = unpack(numerics)
        loss_scale = self.settings.loss_scale
        return pack(loss_scale.count(scaling, loss_scale.chosen(gradients, captured)), key)


def unpack(numerics: Arrays) -> tuple[Scaling, jax.Array]:
    *scaling, key = numerics
    return Scaling(*scaling), key


def pack(scaling: Scaling, key: jax.Array) -> Arrays:
    return [*scaling, key]


def split_key(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the key to carry on, and one to draw from."""
    carried, use = jax.random.split(jax.random.wrap_key_data(key, impl=_KEY_TYPE))
    return jax.random.key_data(carried), use


def _make_variables(loss_scale: LossScale | None) -> list[keras.Variable]:
    seed = keras_bridge.random_seed()
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    key = jax.random.key_data(jax.random.key(seed, impl=_KEY_TYPE))
    begin = loss_scale.begin() if loss_scale else Scaling(*[jnp.zeros(())] * len(Scaling._fields))
    return [
        keras.Variable(value, dtype=value.dtype.name, trainable=False, name=name)
        for name, value in [*begin._asdict().items(), ("rounding_key", key)]
    ]
