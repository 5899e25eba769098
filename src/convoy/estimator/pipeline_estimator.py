"""Estimators whose model function builds a network in pipeline stages."""

from collections.abc import Callable, Mapping, Sequence

import convoy
import keras
from convoy.estimator.estimator import Estimator
from convoy.estimator.hooks import Hook
from convoy.estimator.input import Element
from convoy.estimator.spec import (
    Accumulation,
    EstimatorSpec,
    HostFunction,
    ModeKeys,
    NetworkSpec,
    PipelineEstimatorSpec,
    Stages,
)
from convoy.estimator.user_functions import as_arguments, check_returned
from convoy.types import PyTree


class PipelineEstimator(Estimator):
    """Trains, evaluates and predicts with a network in pipeline stages, one device per stage.

    Args:
        model_fn: a function of any of `mode`, `params` and `config` that returns a
            `PipelineEstimatorSpec`.
        model_dir: as for `Estimator`.
        config: as for `Estimator`. Its strategy needs a device for each stage; further devices
            hold replicas.
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

    def _build(self, mode: ModeKeys, params: dict[str, PyTree], tensors: Element) -> NetworkSpec:
        spec = self._call_model_fn(mode, params)
        expected = "a PipelineEstimatorSpec"
        check_returned("The model function", spec, PipelineEstimatorSpec, expected)

        def minimise(outputs: PyTree) -> tuple[keras.KerasTensor, PyTree]:
            return _loss(outputs), spec.optimizer

        last, mapping = len(spec.stages) - 1, spec.device_mapping
        return NetworkSpec(
            build_stages(mode, spec.stages, tensors, minimise, spec.host_metrics, spec.hooks),
            Stages(last, spec.schedule, mapping, spec.activation_checkpointing),
            Accumulation(spec.gradient_accumulation, spec.reduction),
        )


def build_stages(
    mode: ModeKeys,
    stages: Sequence[Callable[..., PyTree]],
    tensors: Element,
    minimise: Callable[[PyTree], tuple[keras.KerasTensor, PyTree]],
    host_metrics: HostFunction | None,
    hooks: Sequence[Hook],
) -> EstimatorSpec:
    """Call the functions of pipeline stages one after the other, and return their network.

    Args:
        mode: the mode.
        stages: functions; each takes what the previous one returned.
        tensors: symbolic features and labels, for the first stage.
        minimise: a function of the last stage's outputs that returns the loss and the optimizer,
            in `TRAIN`.
        host_metrics: function of the last stage's outputs, in `EVAL`.
        hooks: hooks of the run.
    """
    outputs: PyTree = [tensors.features]
    if tensors.labels is not None and mode != ModeKeys.PREDICT:
        outputs.append(tensors.labels)
    for number, stage in enumerate(stages):
        with convoy.PipelineStage(number):
            args, kwargs = as_arguments(outputs)
            outputs = stage(*args, **kwargs)
    args, kwargs = as_arguments(outputs)
    if mode == ModeKeys.TRAIN:
        with convoy.PipelineStage(len(stages) - 1):
            loss, optimizer = minimise(outputs)
        return EstimatorSpec(mode, loss=loss, optimizer=optimizer, hooks=hooks)
    if mode == ModeKeys.EVAL:
        assert host_metrics is not None
        return EstimatorSpec(
            mode, host_metrics=(_with_loss(host_metrics), kwargs or args), hooks=hooks
        )
    if len(args) > 1:
        raise ValueError(f"The last stage returns {len(args)} predictions. Return one, or a dict.")
    return EstimatorSpec(mode, kwargs or args[0], hooks=hooks)


def _loss(outputs: PyTree) -> keras.KerasTensor:
    args, kwargs = as_arguments(outputs)
    if kwargs or len(args) != 1:
        raise ValueError("The last stage returns several values. Return the loss alone.")
    return args[0]


def _with_loss(compute: HostFunction) -> HostFunction:
    """Return a function for metrics that raises `KeyError` if its result has no loss."""

    def checked(*args: PyTree, **kwargs: PyTree) -> Mapping[str, PyTree]:
        results = compute(*args, **kwargs)
        if isinstance(results, Mapping) and "loss" not in results:
            raise KeyError("The function for metrics returned no 'loss'. Add it to the dict.")
        return results

    return checked
