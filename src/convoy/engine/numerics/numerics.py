"""Mixed-precision settings of a strategy, and the state that training carries for them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.engine.numerics.loss_scale import LossScaleState, LossScaling
from convoy.precision import Precision
from convoy.types import Arrays, Logs

StochasticRounding = Literal["off", "on", "replica_identical"]

LOSS_SCALE_LOG = "loss_scaling_factor"
SKIPPED_LOG = "skipped_updates"
LOGS = (LOSS_SCALE_LOG, SKIPPED_LOG)

_KEY_TYPE = "threefry2x32"

# Names of the variables in checkpoints: those of `LossScaleState`, then the key.
_VARIABLE_NAMES = ("factor", "previous", "updates", "large", "counted", "skipped", "rounding_key")


@dataclass(frozen=True)
class Settings:
    """Precision, loss scale and rounding of a strategy.

    Attributes:
        precision: types of computation and of weights; `None` leaves them to Keras.
        loss_scaling: choice of the loss scale; `None` leaves it to Keras.
        stochastic_rounding: whether the update of 16-bit weights is rounded stochastically.
    """

    precision: Precision | None = None
    loss_scaling: LossScaling | None = None
    stochastic_rounding: StochasticRounding = "off"

    def __post_init__(self) -> None:
        words = get_args(StochasticRounding)
        if self.stochastic_rounding not in words:
            raise ValueError(
                f"stochastic_rounding={self.stochastic_rounding!r} is unknown. Pass one of "
                f"{', '.join(map(repr, words))}."
            )

    @cached_property
    def rounds(self) -> bool:
        return self.stochastic_rounding != "off"


class Numerics:
    """The settings of one model, with the variables that its training needs for them.

    `State.numerics` holds the values of these variables: those of `LossScaleState`, then a random
    key. Without loss scaling and rounding there are none, and programs contain no code for them.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def variables(self) -> list[keras.Variable]:
        """The variables, which checkpoints contain; a saved Keras model does not."""
        settings = self.settings
        if settings.loss_scaling is None and not settings.rounds:
            return []
        return _make_variables(settings.loss_scaling)

    @property
    def loss_scale_state(self) -> LossScaleState | None:
        """The state of loss scaling as Python numbers; `None` if the strategy has no loss scale."""
        if self.settings.loss_scaling is None:
            return None
        *state, _ = self.variables
        return LossScaleState(*(np.asarray(variable.value).item() for variable in state))

    def logs(self, numerics: Arrays) -> Logs:
        """Return the values that training logs in addition to the metrics."""
        if self.settings.loss_scaling is None or not numerics:
            return {}
        state, _ = unpack(numerics)
        return {LOSS_SCALE_LOG: state.loss_scale, SKIPPED_LOG: state.skipped}

    def loss_scale(self, numerics: Arrays) -> jax.Array | None:
        """Return the current loss scale."""
        return unpack(numerics)[0].loss_scale if self.settings.loss_scaling else None

    def count(self, numerics: Arrays, gradients: Arrays, captured: Arrays) -> Arrays:
        """Add the statistics of the gradients of one micro-batch on one replica.

        The added counts are summed over replicas; all other values are equal on all replicas.

        Args:
            numerics: values of the variables.
            gradients: gradients of the weights.
            captured: gradients of tensors that a layer captures.
        """
        loss_scaling = self.settings.loss_scaling
        if loss_scaling is None:
            return numerics
        state, key = unpack(numerics)
        return pack(loss_scaling.count(state, loss_scaling.select(gradients, captured)), key)


def unpack(numerics: Arrays) -> tuple[LossScaleState, jax.Array]:
    *state, key = numerics
    return LossScaleState(*state), key


def pack(state: LossScaleState, key: jax.Array) -> Arrays:
    return [*state, key]


def split_key(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the key to carry on, and one to draw from."""
    carried, use = jax.random.split(jax.random.wrap_key_data(key, impl=_KEY_TYPE))
    return jax.random.key_data(carried), use


def _make_variables(loss_scaling: LossScaling | None) -> list[keras.Variable]:
    seed = keras_bridge.random_seed()
    if seed is None:
        seed = int(np.random.SeedSequence().generate_state(1)[0])
    key = jax.random.key_data(jax.random.key(seed, impl=_KEY_TYPE))
    zeros = LossScaleState(*[jnp.zeros(())] * len(LossScaleState._fields))
    values = pack(loss_scaling.begin() if loss_scaling else zeros, key)
    return [
        keras.Variable(value, dtype=value.dtype.name, trainable=False, name=name)
        for name, value in zip(_VARIABLE_NAMES, values, strict=True)
    ]
