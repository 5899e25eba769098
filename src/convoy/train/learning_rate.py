"""Learning-rate schedules of `convoy train`: those of Keras, with warm-up and staircase.

`updates` is the number of weight updates per epoch. `--learning-rate` is the learning rate itself.
Learning rates in `--lr-schedule-params` are per sample and are multiplied by the global batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import keras
from convoy.train.flags import Options
from convoy.types import Json
from keras import ops
from keras.optimizers.schedules import CosineDecay, PiecewiseConstantDecay, PolynomialDecay
from keras.optimizers.schedules import LearningRateSchedule as Schedule

Step: TypeAlias = jax.Array | int
"""Number of weight updates so far."""


@keras.saving.register_keras_serializable(package="convoy")
class Constant(Schedule):
    """A learning rate that does not change."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Step) -> jax.Array:
        return ops.zeros_like(_number(step)) + self.rate

    def get_config(self) -> Json:
        return {"rate": self.rate}


class _Wrapper(Schedule):
    """A schedule that modifies another one."""

    def __init__(self, base: Schedule, updates: int) -> None:
        self.base = base
        self.updates = updates

    def get_config(self) -> Json:
        return {
            "base": keras.saving.serialize_keras_object(self.base),
            "updates": self.updates,
        }

    @classmethod
    def from_config(cls, config: Json) -> _Wrapper:
        base = keras.saving.deserialize_keras_object(config["base"])
        return cls(base, config["updates"])


@keras.saving.register_keras_serializable(package="convoy")
class ShiftWarmUp(_Wrapper):
    """A linear rise to the first learning rate in `updates` updates, and then the schedule."""

    def __call__(self, step: Step) -> jax.Array:
        step = _number(step)
        rising = self.base(ops.zeros_like(step)) * (step + 1) / (self.updates + 1)
        after = self.base(ops.maximum(step - self.updates, 0))
        return ops.where(step < self.updates, rising, after)


@keras.saving.register_keras_serializable(package="convoy")
class MaskWarmUp(_Wrapper):
    """A linear rise in the first `updates` updates, multiplied with the schedule."""

    def __call__(self, step: Step) -> jax.Array:
        step = _number(step)
        rate = self.base(step)
        return ops.where(step < self.updates, rate * (step + 1) / (self.updates + 1), rate)


@keras.saving.register_keras_serializable(package="convoy")
class Staircase(_Wrapper):
    """A learning rate that changes only every `updates` updates."""

    def __call__(self, step: Step) -> jax.Array:
        return self.base(ops.floor(_number(step) / self.updates) * self.updates)


# Files of earlier versions hold these names instead of those of Keras.
_EARLIER: dict[str, Callable[[Json], Schedule]] = {
    "Cosine": lambda config: CosineDecay(config["rate"], config["decay_updates"]),
    "Stepped": lambda config: _stepped(config["boundaries"], config["values"]),
    "Polynomial": lambda config: PolynomialDecay(
        config["rate"], config["decay_updates"], config["end"], config["power"]
    ),
}
for _name, _make in _EARLIER.items():
    _earlier = type(_name, (Schedule,), {"from_config": staticmethod(_make)})
    keras.saving.register_keras_serializable(package="convoy")(_earlier)


_WARM_UPS: dict[str, type[_Wrapper]] = {"shift": ShiftWarmUp, "mask": MaskWarmUp}

# The required parameters of each schedule, apart from the learning rate and the epochs of decay.
_NEEDS: dict[str, tuple[str, ...]] = {
    "const": (),
    "stepped": ("boundaries", "values"),
    "cosine": (),
    "polynomial": ("end_learning_rate_ratio", "power"),
}
_RATE, _DECAY = "initial_learning_rate", "epochs_to_total_decay"


def make_schedule(options: Options, batch: int, updates: int) -> Schedule:
    """Return the schedule of a run.

    Args:
        options: options of the run. `--lr-schedule-params` are `initial_learning_rate`, per sample;
            `epochs_to_total_decay`, by default the epochs of the run after its warm-up;
            `end_learning_rate_ratio` and `power`; or `boundaries` in epochs and `values`, which
            are not per sample.
        batch: number of samples per weight update.
        updates: number of weight updates per epoch.

    Raises:
        ValueError: if a name is unknown, or a parameter is missing or unknown.
    """
    name, params = options.lr_schedule, options.lr_schedule_params
    if name not in _NEEDS:
        raise ValueError(f"--lr-schedule {name} is not one of {', '.join(_NEEDS)}.")
    needed = _NEEDS[name]
    if name == "stepped":
        if options.learning_rate is not None:
            raise ValueError(
                "--learning-rate has no effect on --lr-schedule stepped. Pass its values in "
                "--lr-schedule-params."
            )
    elif options.learning_rate is None:
        needed = (_RATE, *needed)
    # Recipes inherit parameters of other schedules, which are ignored.
    every = {key for keys in _NEEDS.values() for key in keys} | {_RATE, _DECAY}
    check_keys("--lr-schedule-params", params, needed, every)
    warm_up = _warm_up(options)
    schedule = _base(options, batch, updates, warm_up)
    if warm_up is not None:
        mode, epochs = warm_up
        schedule = _WARM_UPS[mode](schedule, int(epochs * updates))
    return Staircase(schedule, updates) if options.lr_staircase else schedule


def _warm_up(options: Options) -> tuple[str, float] | None:
    """Return mode and epochs of the warm-up, if there is one."""
    params = options.lr_warmup_params
    if not params:
        return None
    needed = ("warmup_mode", "warmup_epochs")
    check_keys("--lr-warmup-params", params, needed, set(needed))
    mode = params["warmup_mode"]
    if mode not in _WARM_UPS:
        raise ValueError(f"--lr-warmup-params: warmup_mode {mode!r}: pass shift or mask.")
    return mode, params["warmup_epochs"]


def check_keys(
    flag: str, params: Mapping[str, Any], needed: Sequence[str], known: set[str]
) -> None:
    """Raise an error if a parameter is missing or unknown."""
    if missing := [key for key in needed if key not in params]:
        raise ValueError(
            f"{flag} has {', '.join(params) or 'nothing'}, but {', '.join(missing)} is missing. "
            "Add it."
        )
    if extra := sorted(set(params) - known):
        raise ValueError(
            f"{flag}: {', '.join(extra)} is unknown; known: {', '.join(sorted(known))}."
        )


def _base(
    options: Options, batch: int, updates: int, warm_up: tuple[str, float] | None
) -> Schedule:
    """Return the schedule without its warm-up."""
    name, params = options.lr_schedule, options.lr_schedule_params
    if name == "stepped":
        boundaries, values = params["boundaries"], params["values"]
        if len(values) != len(boundaries) + 1:
            raise ValueError(
                f"--lr-schedule-params: {len(boundaries)} boundaries need {len(boundaries) + 1} "
                f"values, but there are {len(values)}. Pass one value more than boundaries."
            )
        return _stepped([int(epoch * updates) for epoch in boundaries], values)
    rate = options.learning_rate
    if rate is None:
        rate = params[_RATE] * batch
    if name == "const":
        return Constant(rate)
    decay = _decay_updates(options, updates, warm_up)
    if name == "cosine":
        return CosineDecay(rate, decay)
    return PolynomialDecay(rate, decay, rate * params["end_learning_rate_ratio"], params["power"])


def _decay_updates(options: Options, updates: int, warm_up: tuple[str, float] | None) -> int:
    """Return the number of weight updates until the learning rate reaches its final value."""
    epochs = options.lr_schedule_params.get(_DECAY)
    if epochs is not None:
        if (decay := int(epochs * updates)) < 1:
            raise ValueError(
                f"--lr-schedule-params: {_DECAY} {epochs} is less than one of the {updates} weight "
                "updates of an epoch. Pass more epochs."
            )
        return decay
    # A warm-up in the mode "shift" comes before the schedule.
    shift = warm_up[1] if warm_up is not None and warm_up[0] == "shift" else 0
    if (decay := int((options.num_epochs - shift) * updates)) < 1:
        raise ValueError(
            f"--lr-warmup-params: a warm-up of {shift} epochs leaves nothing of the "
            f"{options.num_epochs} epochs for --lr-schedule {options.lr_schedule}. Pass more "
            f"epochs, or {_DECAY} in --lr-schedule-params."
        )
    return decay


def _stepped(boundaries: Sequence[int], values: Sequence[float]) -> Schedule:
    """Return `values[i]` up to and including update `boundaries[i]`, then the last value."""
    if not boundaries:
        return Constant(values[0])
    return PiecewiseConstantDecay(list(boundaries), list(values))


def _number(step: Step) -> jax.Array:
    return ops.cast(step, "float32")
