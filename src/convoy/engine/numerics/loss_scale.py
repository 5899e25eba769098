"""Loss scaling: multiplies the loss so that small gradients do not underflow in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from convoy.types import Arrays, PyTree

Compute = Callable[..., tuple[jax.Array, PyTree]]

# Smaller and larger factors are 0 and infinity in float32.
_SMALLEST = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)


class LossScaleState(NamedTuple):
    """The state of loss scaling, which is carried from update to update.

    Attributes:
        loss_scale: the current loss scale.
        previous: the loss scale before its last change.
        updates: updates since the last decision, skipped ones included.
        large: elements of gradients since then whose absolute value is above the edge.
        counted: all elements of gradients since then.
        skipped: updates that were skipped since training began, because a gradient overflowed.
    """

    loss_scale: jax.Array
    previous: jax.Array
    updates: jax.Array
    large: jax.Array
    counted: jax.Array
    skipped: jax.Array

    @classmethod
    def begin(cls, loss_scale: float) -> LossScaleState:
        return cls(
            loss_scale=jnp.float32(loss_scale),
            previous=jnp.float32(loss_scale),
            updates=jnp.int32(0),
            large=jnp.float32(0),
            counted=jnp.float32(0),
            skipped=jnp.int32(0),
        )

    def skipped_with(self, finite: jax.Array) -> jax.Array:
        """Return the number of skipped updates after one whose gradients are finite or not."""
        return self.skipped + (~finite).astype(jnp.int32)


@dataclass(frozen=True)
class StaticLossScale:
    """A constant loss scale.

    Args:
        loss_scale: a number above 0. With a power of two, float32 training gives the same bits as
            without.
    """

    loss_scale: float

    def __post_init__(self) -> None:
        # The strategy does not check its argument, so a wrong type is detected here.
        if not (_is_number(self.loss_scale) and _SMALLEST <= self.loss_scale <= _LARGEST):
            raise ValueError(
                f"loss_scale={self.loss_scale!r} is not a factor for the loss. Pass a number above "
                "0 such as 1024, which float32 can hold, or 'auto'."
            )

    def begin(self) -> LossScaleState:
        return LossScaleState.begin(self.loss_scale)

    def select(self, gradients: Arrays, captured: Arrays) -> Arrays:
        del captured
        return gradients

    def count(self, state: LossScaleState, gradients: Arrays) -> LossScaleState:
        del gradients
        return state

    def decide(self, state: LossScaleState, finite: jax.Array) -> LossScaleState:
        return state._replace(skipped=state.skipped_with(finite))


@dataclass(frozen=True)
class AutomaticLossScale:
    """A loss scale that grows until gradients come close to overflow.

    The loss scale changes every `period` updates. If the fraction of gradient elements whose
    absolute value is above `edge` is larger than `threshold`, it is divided by `step`; otherwise it
    is multiplied by `step`. It is never below 1 and stays below `limit`. An update whose gradients
    overflow is skipped, and the loss scale is divided immediately. The defaults are those of
    Graphcore's software.

    Args:
        initial: the first loss scale, at least 1 and below `limit`.
        period: updates from one decision to the next.
        step: the factor by which the loss scale is multiplied or divided, above 1.
        limit: upper bound of the loss scale, which it does not reach.
        threshold: the fraction of large elements above which the loss scale falls, between 0 and 1.
        edge: the absolute value above which an element is large. 65504 is the largest number of
            float16, so that only overflow counts; a smaller value, such as 2**13, leaves a margin.
        captured_only: whether the gradients that `ipu.keras.layers` capture count, instead of the
            gradients of the weights.

    Example:
    ```python
    convoy.Strategy(precision="16.32", loss_scale=convoy.AutomaticLossScale(period=100))
    ```
    """

    initial: float = 1.0
    period: int = 8
    step: float = 2.0
    limit: float = 32768.0
    threshold: float = 1e-5
    edge: float = 65504.0
    captured_only: bool = False

    def __post_init__(self) -> None:
        wanted = {
            "initial": (1 <= self.initial < self.limit, f"from 1 to below limit={self.limit}"),
            "period": (isinstance(self.period, int) and self.period >= 1, "a whole number from 1"),
            "step": (1 < self.step < math.inf, "above 1"),
            "limit": (1 < self.limit < math.inf, "above 1"),
            "threshold": (0 < self.threshold < 1, "between 0 and 1"),
            "edge": (0 < self.edge < math.inf, "above 0"),
        }
        for name, (fits, expected) in wanted.items():
            if not fits:
                raise ValueError(
                    f"AutomaticLossScale({name}={getattr(self, name)!r}) cannot be used: {name} "
                    f"must be {expected}."
                )

    def begin(self) -> LossScaleState:
        return LossScaleState.begin(self.initial)

    def select(self, gradients: Arrays, captured: Arrays) -> Arrays:
        """Return the gradients that count.

        Raises:
            ValueError: if only captured gradients count, and none was captured.
        """
        if self.captured_only and not captured:
            raise ValueError(
                "captured_only=True counts captured gradients only, but the model captures none. "
                "Wrap layers in ipu.keras.layers.CaptureUpstreamGradients, which is not supported "
                "with pipeline stages."
            )
        return captured if self.captured_only else gradients

    def count(self, state: LossScaleState, gradients: Arrays) -> LossScaleState:
        """Count the large elements of the scaled gradients of one micro-batch."""
        # Counts within a tensor are integers, because float32 cannot count beyond 2**24.
        large = [
            jnp.sum(~(jnp.abs(gradient) <= self.edge), dtype=jnp.int32) for gradient in gradients
        ]
        return state._replace(
            large=state.large + sum(one.astype(jnp.float32) for one in large),
            counted=state.counted + float(sum(gradient.size for gradient in gradients)),
        )

    def decide(self, state: LossScaleState, finite: jax.Array) -> LossScaleState:
        """Choose the loss scale of the next update; `finite` is whether this update was applied."""
        updates = state.updates + 1
        due = (updates == self.period) | ~finite
        falls = (state.large > self.threshold * state.counted) | ~finite
        proposed = jnp.where(falls, state.loss_scale / self.step, state.loss_scale * self.step)
        accepted = due & (proposed >= 1) & (proposed < self.limit)
        return LossScaleState(
            loss_scale=jnp.where(accepted, proposed, state.loss_scale),
            previous=jnp.where(accepted, state.loss_scale, state.previous),
            updates=jnp.where(due, 0, updates),
            large=jnp.where(due, 0.0, state.large),
            counted=jnp.where(due, 0.0, state.counted),
            skipped=state.skipped_with(finite),
        )


LossScaling = StaticLossScale | AutomaticLossScale


def find(loss_scale: float | str | LossScaling | None) -> LossScaling | None:
    """Return the loss scale for the argument `loss_scale` of a strategy."""
    if loss_scale is None or isinstance(loss_scale, LossScaling):
        return loss_scale
    if loss_scale == "auto":
        return AutomaticLossScale()
    return StaticLossScale(cast(float, loss_scale))


def scale_loss(compute: Compute, loss_scale: jax.Array | None) -> Compute:
    """Scale the loss that is differentiated; the loss in the auxiliary data stays unscaled."""
    if loss_scale is None:
        return compute

    def scaled(*args: PyTree, **kwargs: PyTree) -> tuple[jax.Array, PyTree]:
        loss, auxiliary = compute(*args, **kwargs)
        return loss.astype(np.promote_types(loss.dtype, jnp.float32)) * loss_scale, auxiliary

    return scaled


def unscale(gradients: Arrays, loss_scale: jax.Array) -> Arrays:
    """Divide gradients by the loss scale, at least in float32, so that they do not underflow."""
    wide = [
        gradient.astype(np.promote_types(gradient.dtype, jnp.float32)) for gradient in gradients
    ]
    return [gradient / loss_scale.astype(gradient.dtype) for gradient in wide]


def all_finite(gradients: Arrays) -> jax.Array:
    finite = jnp.bool_(True)
    for gradient in gradients:
        finite &= jnp.all(jnp.isfinite(gradient))
    return finite


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
