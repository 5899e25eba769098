"""Learning rates by weight update.

`updates` is the number of weight updates in an epoch, and learning rates are per sample: the one
that is used is `batch` times as large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule as Schedule


class _Plain(Schedule):
    """A schedule whose attributes are its arguments."""

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))


@keras.saving.register_keras_serializable(package="convoy")
class Constant(_Plain):
    """The same learning rate throughout."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return ops.zeros_like(_number(step)) + self.rate


@keras.saving.register_keras_serializable(package="convoy")
class Cosine(_Plain):
    """Half a cosine from `rate` to zero in so many updates."""

    def __init__(self, rate: float, decay_updates: int) -> None:
        self.rate = rate
        self.decay_updates = decay_updates

    def __call__(self, step: Any) -> Any:
        done = _share(step, self.decay_updates)
        return 0.5 * self.rate * (1 + ops.cos(math.pi * done))


@keras.saving.register_keras_serializable(package="convoy")
class Stepped(_Plain):
    """`values[i]` up to and including update `boundaries[i]`, and the last value after them."""

    def __init__(self, boundaries: Sequence[int], values: Sequence[float]) -> None:
        self.boundaries = list(boundaries)
        self.values = list(values)

    def __call__(self, step: Any) -> Any:
        step = _number(step)
        rate = ops.zeros_like(step) + self.values[-1]
        for boundary, value in reversed(list(zip(self.boundaries, self.values, strict=False))):
            rate = ops.where(step <= boundary, value, rate)
        return rate


@keras.saving.register_keras_serializable(package="convoy")
class Polynomial(_Plain):
    """From `rate` to `end` in so many updates, by a power of the part that is left."""

    def __init__(self, rate: float, decay_updates: int, end: float, power: float) -> None:
        self.rate = rate
        self.decay_updates = decay_updates
        self.end = end
        self.power = power

    def __call__(self, step: Any) -> Any:
        left = 1 - _share(step, self.decay_updates)
        return (self.rate - self.end) * left**self.power + self.end


class _Around(Schedule):
    """A schedule that changes another one."""

    def __init__(self, base: Schedule, updates: int) -> None:
        self.base = base
        self.updates = updates

    def get_config(self) -> dict[str, Any]:
        return {
            "base": keras.saving.serialize_keras_object(self.base),
            "updates": self.updates,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> _Around:
        base = keras.saving.deserialize_keras_object(config["base"])
        return cls(base, config["updates"])


@keras.saving.register_keras_serializable(package="convoy")
class ShiftWarmUp(_Around):
    """Rises to the first learning rate in `updates` updates, then begins with the schedule."""

    def __call__(self, step: Any) -> Any:
        step = _number(step)
        rising = self.base(ops.zeros_like(step)) * (step + 1) / (self.updates + 1)
        after = self.base(ops.maximum(step - self.updates, 0))
        return ops.where(step < self.updates, rising, after)


@keras.saving.register_keras_serializable(package="convoy")
class MaskWarmUp(_Around):
    """Weakens the first `updates` updates of the schedule, which goes on underneath."""

    def __call__(self, step: Any) -> Any:
        step = _number(step)
        rate = self.base(step)
        return ops.where(step < self.updates, rate * (step + 1) / (self.updates + 1), rate)


@keras.saving.register_keras_serializable(package="convoy")
class Staircase(_Around):
    """Holds the learning rate for `updates` updates at a time."""

    def __call__(self, step: Any) -> Any:
        return self.base(ops.floor(_number(step) / self.updates) * self.updates)


_WARM_UPS: dict[str, type[_Around]] = {"shift": ShiftWarmUp, "mask": MaskWarmUp}

_NEEDS = {
    "const": ("initial_learning_rate",),
    "cosine": ("initial_learning_rate", "epochs_to_total_decay"),
    "stepped": ("boundaries", "values"),
    "polynomial": (
        "initial_learning_rate",
        "epochs_to_total_decay",
        "end_learning_rate_ratio",
        "power",
    ),
}


def make_schedule(
    name: str,
    params: Mapping[str, Any],
    *,
    batch: int,
    updates: int,
    warm_up: Mapping[str, Any] | None = None,
    staircase: bool = False,
) -> Schedule:
    """Return the schedule of a run.

    Args:
        name: `"const"`, `"cosine"`, `"stepped"` or `"polynomial"`.
        params: what the schedule needs: `initial_learning_rate`, per sample;
            `epochs_to_total_decay`; `end_learning_rate_ratio` and `power`; or `boundaries` in
            epochs and `values`, which are not per sample.
        batch: samples in a weight update.
        updates: weight updates in an epoch.
        warm_up: `warmup_mode`, `"shift"` or `"mask"`, and `warmup_epochs`.
        staircase: whether the learning rate stays the same within an epoch.

    Raises:
        ValueError: if a name is unknown, or a parameter is missing or unknown.
    """
    if name not in _NEEDS:
        raise ValueError(f"--lr-schedule {name} is not one of {', '.join(_NEEDS)}.")
    # Recipes inherit parameters of other schedules; those are left alone.
    every = {key for keys in _NEEDS.values() for key in keys}
    check_keys("--lr-schedule-params", params, _NEEDS[name], every)
    schedule = _base(name, params, batch, updates)
    if warm_up:
        needed = ("warmup_mode", "warmup_epochs")
        check_keys("--lr-warmup-params", warm_up, needed, set(needed))
        mode = warm_up["warmup_mode"]
        if mode not in _WARM_UPS:
            raise ValueError(f"--lr-warmup-params: warmup_mode {mode!r} is neither shift nor mask.")
        schedule = _WARM_UPS[mode](schedule, int(warm_up["warmup_epochs"] * updates))
    return Staircase(schedule, updates) if staircase else schedule


def check_keys(
    flag: str, params: Mapping[str, Any], needed: Sequence[str], known: set[str]
) -> None:
    """Refuse parameters of which one is missing or unknown."""
    if missing := [key for key in needed if key not in params]:
        raise ValueError(
            f"{flag} has {', '.join(params) or 'nothing'}, but {', '.join(missing)} is missing."
        )
    if extra := sorted(set(params) - known):
        raise ValueError(
            f"{flag}: {', '.join(extra)} is unknown; known: {', '.join(sorted(known))}."
        )


def _base(name: str, params: Mapping[str, Any], batch: int, updates: int) -> Schedule:
    if name == "stepped":
        boundaries, values = params["boundaries"], params["values"]
        if len(values) != len(boundaries) + 1:
            raise ValueError(
                f"--lr-schedule-params: {len(boundaries)} boundaries need {len(boundaries) + 1} "
                f"values, but there are {len(values)}."
            )
        return Stepped([int(epoch * updates) for epoch in boundaries], values)
    rate = params["initial_learning_rate"] * batch
    if name == "const":
        return Constant(rate)
    decay = int(params["epochs_to_total_decay"] * updates)
    if decay < 1:
        raise ValueError(
            f"--lr-schedule-params: epochs_to_total_decay {params['epochs_to_total_decay']} is "
            f"less than one of the {updates} weight updates of an epoch."
        )
    if name == "cosine":
        return Cosine(rate, decay)
    return Polynomial(rate, decay, rate * params["end_learning_rate_ratio"], params["power"])


def _number(step: Any) -> Any:
    return ops.cast(step, "float32")


def _share(step: Any, whole: int) -> Any:
    return ops.minimum(_number(step), whole) / whole
