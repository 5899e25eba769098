"""What a pipeline is told in objects of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
from convoy.ipu.optimizers import IpuOptimizer


@dataclass(frozen=True)
class PipelineStageOptions:
    """Options of Graphcore's libraries for one stage; they have no effect on other devices."""

    convolution_options: dict[str, str] | None = None
    matmul_options: dict[str, str] | None = None
    slice_options: dict[str, str] | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not isinstance(value, dict):
                raise TypeError(f"{name}={value!r} is not a dict of options.")


@dataclass(frozen=True)
class OptimizerFunctionOutput:
    """What a pipeline makes smaller, and how.

    Attributes:
        opt: an optimizer of Keras's, or around it one of `ipu.optimizers`.
        loss: a tensor.
        compute_gradients_args: must be left out, as must all that follow: gradients are those of
            the loss by all weights.

    Raises:
        TypeError: if the optimizer is none.
        NotImplementedError: if more is given.
    """

    opt: Any
    loss: Any
    compute_gradients_args: Any = None
    compute_gradients_kwargs: Any = None
    apply_gradients_args: Any = None
    apply_gradients_kwargs: Any = None
    variables: Any = None
    tape: Any = None
    gradient_capture_context: Any = None
    captured_gradient_outfeed: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.opt, (keras.optimizers.Optimizer, IpuOptimizer)):
            raise TypeError(
                f"opt is {type(self.opt).__name__}, not an optimizer of Keras's or of "
                "ipu.optimizers."
            )
        given = [n for n, value in vars(self).items() if n not in ("opt", "loss") and value]
        if given:
            raise NotImplementedError(
                f"OptimizerFunctionOutput does not take {given[0]}: gradients are those of the "
                "loss by all weights. Leave it out."
            )
