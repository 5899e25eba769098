"""The learning rate by weight update: it rises, and falls in steps, from epoch to epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from cosmoflow.settings import LearningRate


@keras.saving.register_keras_serializable(package="convoy")
class WarmUpAndDecay(LearningRateSchedule):
    """From `base` to `peak` in some epochs, and later shares of `peak`.

    It changes with the epoch only. A share holds from the epoch after its number on, counted from
    0, as in the reference of MLPerf HPC.

    Args:
        base: the rate of the first epoch, if it rises.
        peak: the rate after it has risen.
        warm_up: epochs in which it rises.
        shares: of the peak, by epoch.
        updates: weight updates of an epoch.
    """

    def __init__(
        self, base: float, peak: float, warm_up: int, shares: Mapping[int, float], updates: int
    ) -> None:
        self.base = base
        self.peak = peak
        self.warm_up = warm_up
        # JSON has no numbers for names.
        self.shares = {int(epoch): share for epoch, share in sorted(shares.items())}
        self.updates = updates

    def __call__(self, step: Any) -> Any:
        epoch = ops.floor(ops.cast(step, "float32") / self.updates)
        rate = ops.zeros_like(epoch) + self.peak
        for after, share in self.shares.items():
            rate = ops.where(epoch > after, self.peak * share, rate)
        rising = self.base + (self.peak - self.base) * epoch / max(1, self.warm_up)
        return ops.where(epoch < self.warm_up, rising, rate)

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))


def scale(settings: LearningRate, batch: int, micro_batch: int) -> float:
    """Return by what the learning rate is multiplied for a batch of so many samples."""
    ratio = batch / (settings.base_batch_size or micro_batch)
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[settings.scaling]


def make_schedule(
    settings: LearningRate, batch: int, micro_batch: int, updates: int
) -> float | WarmUpAndDecay:
    """Return the learning rate, which is a number if it stays the same."""
    peak = settings.base_lr * scale(settings, batch, micro_batch)
    if not settings.n_warmup_epochs and not settings.decay_schedule:
        return peak
    return WarmUpAndDecay(
        settings.base_lr, peak, settings.n_warmup_epochs, settings.decay_schedule, updates
    )
