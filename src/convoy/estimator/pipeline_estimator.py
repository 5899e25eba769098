"""Estimators whose model function builds a network in stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import convoy
from convoy.estimator import arguments
from convoy.estimator.estimator import Estimator
from convoy.estimator.input import Element
from convoy.estimator.spec import (
    Accumulated,
    Built,
    EstimatorSpec,
    ModeKeys,
    PipelineEstimatorSpec,
    Stages,
)


class PipelineEstimator(Estimator):
    """Trains, evaluates and predicts with a network in stages, each on a device of its own.

    Args:
        model_fn: takes what it names of `mode`, `params` and `config`. Returns a
            `PipelineEstimatorSpec`.
        model_dir: as for `Estimator`.
        config: as for `Estimator`. Its strategy needs a device for each stage; more hold replicas.
        params: as for `Estimator`.
        warm_start_from: as for `Estimator`.

    Example:
    ```python
    def first(features, labels):
        return keras.layers.Dense(64, activation="relu")(features), labels

    def second(x, labels):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return loss(labels, keras.layers.Dense(10)(x))

    def model_fn(mode):
        return convoy.estimator.PipelineEstimatorSpec(
            mode, [first, second], optimizer="sgd", gradient_accumulation=4
        )
    ```
    """

    known_arguments = ("mode", "params", "config")

    def _build(self, mode: ModeKeys, params: dict[str, Any], tensors: Element) -> Built:
        offered = {"mode": mode, "params": params, "config": self.config}
        spec = arguments.call(self.model_fn, offered)
        if not isinstance(spec, PipelineEstimatorSpec):
            raise TypeError(
                f"The model function returned {type(spec).__name__}, not a PipelineEstimatorSpec."
            )
        stages = Stages(len(spec.stages) - 1, spec.schedule, spec.device_mapping, spec.recompute)
        accumulated = Accumulated(spec.gradient_accumulation, spec.reduction)
        outputs = run_stages(spec.stages, tensors, mode)
        if mode == ModeKeys.TRAIN:
            if len(outputs) != 1 or isinstance(outputs, Mapping):
                raise ValueError("The last stage returns several values. Return the loss alone.")
            made = EstimatorSpec(mode, loss=outputs[0], optimizer=spec.optimizer, hooks=spec.hooks)
        elif mode == ModeKeys.EVAL:
            assert spec.host_metrics is not None
            compute = with_loss(spec.host_metrics)
            made = EstimatorSpec(mode, host_metrics=(compute, outputs), hooks=spec.hooks)
        else:
            made = EstimatorSpec(mode, predictions_of(outputs), hooks=spec.hooks)
        return Built(made, stages, accumulated)


def run_stages(stages: Sequence[Callable[..., Any]], tensors: Element, mode: str) -> Any:
    """Call one stage after the other; return what the last returned, as a tuple or a dict."""
    values: Any = tuple(tensors) if tensors.labels is not None else (tensors.features,)
    if mode == ModeKeys.PREDICT:
        values = (tensors.features,)
    for number, stage in enumerate(stages):
        with convoy.PipelineStage(number):
            values = call_with(stage, values)
    return values


def call_with(function: Callable[..., Any], values: Any) -> Any:
    """Call a function with a tuple of values, or a dict of them by name; return the same."""
    result = function(**values) if isinstance(values, Mapping) else function(*values)
    if isinstance(result, Mapping):
        return dict(result)
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def predictions_of(outputs: Any) -> Any:
    """Return what the last stage returned as predictions.

    Raises:
        ValueError: if it is several values without names.
    """
    if isinstance(outputs, Mapping):
        return outputs
    if len(outputs) != 1:
        raise ValueError(
            f"The last stage returns {len(outputs)} predictions. Return one, or a dict of them."
        )
    return outputs[0]


def with_loss(compute: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
    """Have a function for metrics refused that returns no loss."""

    def checked(*args: Any, **kwargs: Any) -> Mapping[str, Any]:
        results = compute(*args, **kwargs)
        if not isinstance(results, Mapping):
            raise TypeError(
                f"The function for metrics returned {type(results).__name__}, not a dict."
            )
        if "loss" not in results:
            raise KeyError("The function for metrics returned no 'loss'. Add it to the dict.")
        return results

    return checked
