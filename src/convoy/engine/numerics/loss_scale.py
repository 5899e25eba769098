"""Loss scaling: gradients too small for 16 bits are computed larger, and made small again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

Arrays = list[jax.Array]
Compute = Callable[..., tuple[jax.Array, Any]]


class Scaling(NamedTuple):
    """What loss scaling carries from update to update.

    Attributes:
        factor: what the loss is multiplied by now.
        previous: what it was multiplied by before the last change.
        updates: updates since the last decision, those that were skipped included.
        large: gradients' elements since then whose size is above the edge.
        counted: all of the gradients' elements since then.
        skipped: updates that were left out since training began, because a gradient overflowed.
    """

    factor: jax.Array
    previous: jax.Array
    updates: jax.Array
    large: jax.Array
    counted: jax.Array
    skipped: jax.Array


@dataclass(frozen=True)
class StaticLossScale:
    """Multiplies the loss by one number, and divides the gradients by it again.

    Args:
        factor: a number above 0. With a power of two, float32 training gives the same bits as
            without.
    """

    factor: float

    def __post_init__(self) -> None:
        # The strategy hands over whatever it was given, so this is where a wrong word ends.
        if not (_is_number(self.factor) and 0 < self.factor < math.inf):
            raise ValueError(
                f"loss_scale={self.factor!r} is not a factor for the loss. Pass a number above 0 "
                "such as 1024, or 'auto'."
            )

    def begin(self) -> Scaling:
        return _begin(self.factor)

    def chosen(self, gradients: Arrays, captured: Arrays) -> Arrays:
        del captured
        return gradients

    def count(self, scaling: Scaling, gradients: Arrays) -> Scaling:  # noqa: ARG002 - no statistics
        return scaling

    def decide(self, scaling: Scaling, finite: jax.Array) -> Scaling:
        return scaling._replace(skipped=_count_skipped(scaling, finite))


@dataclass(frozen=True)
class AutomaticLossScale:
    """Multiplies the loss by a factor that grows until gradients come near to overflow.

    Every `period` updates the share of the gradients' elements whose size is above `edge` decides:
    if it is larger than `threshold` the factor is divided by `step`, else multiplied. It never
    falls below 1 and stays below `limit`. An update whose gradients overflow is left out, and
    divides the factor at once. The defaults are those of Graphcore's software.

    Args:
        initial: the factor to begin with, at least 1 and below `limit`.
        period: updates from one decision to the next.
        step: what the factor is multiplied or divided by, above 1.
        limit: what the factor stays below.
        threshold: the share of large elements from which on the factor falls, between 0 and 1.
        edge: the size above which an element is large: 65504 is the largest number of float16,
            so that only what overflowed counts; a lower one, such as 2**13, keeps a distance.
        captured_only: whether only gradients count that `ipu.keras.layers` capture, instead of
            those of the weights.

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

    def begin(self) -> Scaling:
        return _begin(self.initial)

    def chosen(self, gradients: Arrays, captured: Arrays) -> Arrays:
        """Return those gradients that count.

        Raises:
            ValueError: if those that were captured are to count, and none was.
        """
        if self.captured_only and not captured:
            raise ValueError(
                "Only captured gradients are to decide the loss scale, but none is captured. Wrap "
                "layers in ipu.keras.layers.CaptureUpstreamGradients; models in stages cannot."
            )
        return captured if self.captured_only else gradients

    def count(self, scaling: Scaling, gradients: Arrays) -> Scaling:
        """Count what is large in the gradients of one micro-batch, scaled as they are."""
        # Whole numbers within a tensor: float32 stops counting ones at 2**24.
        large = [
            jnp.sum(~(jnp.abs(gradient) <= self.edge), dtype=jnp.int32) for gradient in gradients
        ]
        return scaling._replace(
            large=scaling.large + sum(one.astype(jnp.float32) for one in large),
            counted=scaling.counted + float(sum(gradient.size for gradient in gradients)),
        )

    def decide(self, scaling: Scaling, finite: jax.Array) -> Scaling:
        """Choose the factor of the next update, after one that took place if `finite`."""
        updates = scaling.updates + 1
        due = (updates == self.period) | ~finite
        falls = (scaling.large > self.threshold * scaling.counted) | ~finite
        proposed = jnp.where(falls, scaling.factor / self.step, scaling.factor * self.step)
        accepted = due & (proposed >= 1) & (proposed < self.limit)
        return Scaling(
            factor=jnp.where(accepted, proposed, scaling.factor),
            previous=jnp.where(accepted, scaling.factor, scaling.previous),
            updates=jnp.where(due, 0, updates),
            large=jnp.where(due, 0.0, scaling.large),
            counted=jnp.where(due, 0.0, scaling.counted),
            skipped=_count_skipped(scaling, finite),
        )


LossScale = StaticLossScale | AutomaticLossScale


def find(loss_scale: float | str | LossScale | None) -> LossScale | None:
    """Return what the argument `loss_scale` of a strategy stands for."""
    if loss_scale is None or isinstance(loss_scale, LossScale):
        return loss_scale
    if loss_scale == "auto":
        return AutomaticLossScale()
    return StaticLossScale(cast(float, loss_scale))


def scale_loss(compute: Compute, factor: jax.Array | None) -> Compute:
    """Multiply the loss that is differentiated; the one that is reported is beside it, unscaled."""
    if factor is None:
        return compute

    def scaled(*args: Any, **kwargs: Any) -> tuple[jax.Array, Any]:
        loss, beside = compute(*args, **kwargs)
        return loss.astype(np.promote_types(loss.dtype, jnp.float32)) * factor, beside

    return scaled


def unscale(gradients: Arrays, factor: jax.Array) -> Arrays:
    """Divide gradients by the factor of their loss, at least in float32, where small ones fit."""
    wide = [
        gradient.astype(np.promote_types(gradient.dtype, jnp.float32)) for gradient in gradients
    ]
    return [gradient / factor.astype(gradient.dtype) for gradient in wide]


def all_finite(gradients: Arrays) -> jax.Array:
    finite = jnp.bool_(True)
    for gradient in gradients:
        finite &= jnp.all(jnp.isfinite(gradient))
    return finite


def _count_skipped(scaling: Scaling, finite: jax.Array) -> jax.Array:
    return scaling.skipped + (~finite).astype(jnp.int32)


def _begin(factor: float) -> Scaling:
    return Scaling(
        factor=jnp.float32(factor),
        previous=jnp.float32(factor),
        updates=jnp.int32(0),
        large=jnp.float32(0),
        counted=jnp.float32(0),
        skipped=jnp.int32(0),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
