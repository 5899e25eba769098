"""Learning-rate schedule: constant within an epoch, with warm-up and stepwise decay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
from keras.optimizers.schedules import PiecewiseConstantDecay

from cosmoflow.settings import LearningRate


@keras.saving.register_keras_serializable(package="convoy")
class WarmUpAndDecay(PiecewiseConstantDecay):
    """Rises from `base` to `peak` epoch by epoch, and falls to fractions of `peak`.

    As in the reference implementation of MLPerf HPC, a factor applies after the epoch of its
    number, counted from 0.

    Args:
        base: learning rate of the first epoch, if there is a warm-up.
        peak: learning rate after the warm-up.
        warm_up: number of warm-up epochs.
        shares: factors of `peak`, by epoch.
        updates: weight updates per epoch.
    """

    def __init__(
        self, base: float, peak: float, warm_up: int, shares: Mapping[int, float], updates: int
    ) -> None:
        # JSON turns the keys into strings.
        factors = {int(epoch): factor for epoch, factor in sorted(shares.items())}
        self._arguments = {
            "base": base,
            "peak": peak,
            "warm_up": warm_up,
            "shares": factors,
            "updates": updates,
        }

        def rate(epoch: int) -> float:
            if epoch < warm_up:
                return base + (peak - base) * epoch / warm_up
            return peak * next((f for e, f in reversed(factors.items()) if epoch > e), 1.0)

        first_epochs = sorted({*range(1, warm_up + 1), *(epoch + 1 for epoch in factors)})
        super().__init__(
            [epoch * updates - 1 for epoch in first_epochs],
            [rate(0), *map(rate, first_epochs)],
        )

    def get_config(self) -> dict[str, Any]:
        return dict(self._arguments)


def scale(settings: LearningRate, global_batch: int, micro_batch: int) -> float:
    """Return the factor of the learning rate for a global batch size."""
    ratio = global_batch / (settings.base_batch_size or micro_batch)
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[settings.scaling]


def make_schedule(
    settings: LearningRate, global_batch: int, micro_batch: int, updates: int
) -> float | WarmUpAndDecay:
    """Return the learning rate, or its schedule if it changes.

    Args:
        settings: the section of the settings; its `base_lr` is set.
        global_batch: samples per weight update.
        micro_batch: samples per replica and step.
        updates: weight updates per epoch.
    """
    assert settings.base_lr is not None
    peak = settings.base_lr * scale(settings, global_batch, micro_batch)
    if not settings.n_warmup_epochs and not settings.decay_schedule:
        return peak
    return WarmUpAndDecay(
        settings.base_lr, peak, settings.n_warmup_epochs, settings.decay_schedule, updates
    )
