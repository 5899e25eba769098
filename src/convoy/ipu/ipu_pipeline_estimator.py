"""`IPUPipelineEstimator`: an estimator whose network is in pipeline stages."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
from convoy.arguments import whole_number
from convoy.estimator import Hook, ModeKeys, WarmStart
from convoy.estimator.input import Element
from convoy.estimator.pipeline_estimator import build_stages
from convoy.estimator.spec import HostFunction, NetworkSpec, check_mode, check_stage_count
from convoy.estimator.user_functions import as_arguments, check_returned
from convoy.ipu import checks
from convoy.ipu.config import IPUConfig
from convoy.ipu.enums import GradientAccumulationReductionMethod
from convoy.ipu.ipu_estimator import IPUEstimator
from convoy.ipu.ipu_run_config import RunConfig
from convoy.ipu.pipelining.options import OptimizerFunctionOutput, check_minimised, read
from convoy.types import PyTree

__all__ = ["IPUPipelineEstimator", "IPUPipelineEstimatorSpec", "ModeKeys"]

_COUNT = "gradient_accumulation_count"


class IPUPipelineEstimatorSpec:
    """A network in pipeline stages, for one mode.

    Args:
        mode: the mode that was passed to the model function.
        computational_stages: one function per stage. The first takes features and labels (in
            `PREDICT` only features), each other stage takes what the previous one returned.
        gradient_accumulation_count: micro-batches per weight update.
        eval_metrics_fn: a function of the last stage's outputs for all samples. Returns numbers by
            name, including `loss`. Required in `EVAL`.
        optimizer_function: a function of the last stage's outputs. Returns an
            `OptimizerFunctionOutput`. Required in `TRAIN`.
        device_mapping: the device of each stage; by default one device per stage.
        loss_accumulator_dtype: no effect: losses are accumulated in float32.
        training_hooks: hooks of `train`.
        evaluation_hooks: hooks of `evaluate`.
        prediction_hooks: hooks of `predict`.
        reduction_method: reduction of the gradients of micro-batches.
        pipeline_depth: earlier name of `gradient_accumulation_count`.
        pipeline_op_kwargs: `pipeline_schedule`, `recomputation_mode`,
            `gradient_accumulation_dtype`; others are checked and have no effect.

    Raises:
        ValueError: if something that the mode requires is missing, or an option is not supported.
    """

    def __init__(
        self,
        mode: ModeKeys | str,
        computational_stages: Sequence[Callable[..., PyTree]],
        gradient_accumulation_count: int | None = None,
        eval_metrics_fn: HostFunction | None = None,
        optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
        device_mapping: Sequence[int] | None = None,
        loss_accumulator_dtype: object = None,
        training_hooks: Sequence[Hook] = (),
        evaluation_hooks: Sequence[Hook] = (),
        prediction_hooks: Sequence[Hook] = (),
        reduction_method: str | GradientAccumulationReductionMethod = "sum",
        pipeline_depth: int | None = None,
        **pipeline_op_kwargs: Any,
    ) -> None:
        count = pipeline_depth
        if gradient_accumulation_count is not None:
            count = gradient_accumulation_count
        if count is None:
            raise ValueError(f"The spec has no {_COUNT}. Pass it in every mode.")
        whole_number(_COUNT, count, "a number of micro-batches")
        checks.instance("computational_stages", computational_stages, (list, tuple), "a list")
        check_stage_count(computational_stages)
        evaluate = {"eval_metrics_fn": eval_metrics_fn}
        check_mode(mode, TRAIN={"optimizer_function": optimizer_function}, EVAL=evaluate)
        mapping = None if device_mapping is None else list(device_mapping)
        if mapping is not None:
            checks.one_per_stage("device_mapping", mapping, len(computational_stages))
        self.mode = mode
        self.computational_stages = tuple(computational_stages)
        self.eval_metrics_fn = eval_metrics_fn
        self.optimizer_function = optimizer_function
        self.hooks = {
            ModeKeys.TRAIN: tuple(training_hooks),
            ModeKeys.EVAL: tuple(evaluation_hooks),
            ModeKeys.PREDICT: tuple(prediction_hooks),
        }[ModeKeys(mode)]
        where = "IPUPipelineEstimatorSpec"
        self.options = read(count, mapping, reduction_method, pipeline_op_kwargs, where)

    @property
    def devices(self) -> int:
        """Number of devices of one replica."""
        mapping = self.options.device_mapping
        return len(self.computational_stages if mapping is None else set(mapping))


class IPUPipelineEstimator(IPUEstimator):
    """Trains, evaluates and predicts with a network in pipeline stages.

    `iterations_per_loop`, `steps` and the global step count micro-batches.

    Args:
        model_fn: a function of any of `mode`, `params` and `config` that returns an
            `IPUPipelineEstimatorSpec`.
        model_dir: folder of the checkpoints; by default that of the config.
        config: a `RunConfig` of `ipu.ipu_run_config`; `num_shards` are the devices of a replica.
        params: parameters that are passed to both functions.
        warm_start_from: a checkpoint, a folder of checkpoints, or a `convoy.estimator.WarmStart`.
    """

    known_arguments = ("mode", "params", "config")

    def __init__(
        self,
        model_fn: Callable[..., PyTree],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: dict[str, PyTree] | None = None,
        warm_start_from: str | Path | WarmStart | None = None,
    ) -> None:
        super().__init__(model_fn, model_dir, config, params, warm_start_from)

    def _build(self, mode: ModeKeys, params: dict[str, PyTree], tensors: Element) -> NetworkSpec:
        spec = self._call_model_fn(mode, params)
        expected = "an IPUPipelineEstimatorSpec"
        check_returned("The model function", spec, IPUPipelineEstimatorSpec, expected)
        config = self.ipu_config.ipu_options or IPUConfig()
        self._check(spec, config)
        minimise = spec.optimizer_function

        def minimised(outputs: PyTree) -> tuple[keras.KerasTensor, PyTree]:
            assert minimise is not None
            args, kwargs = as_arguments(outputs)
            output = check_minimised(minimise(*args, **kwargs))
            return output.loss, output.opt

        stages = spec.computational_stages
        built = NetworkSpec(
            build_stages(mode, stages, tensors, minimised, spec.eval_metrics_fn, spec.hooks),
            spec.options.stages(len(stages) - 1, config.allow_recompute),
            spec.options.accumulation.native(),
        )
        return self._with_gradient_options(built, spec.devices * self.ipu_config.num_replicas)

    def _check(self, spec: IPUPipelineEstimatorSpec, config: IPUConfig) -> None:
        """Check that numbers of micro-batches, stages and devices fit together.

        Raises:
            ValueError: if device calls would not be whole weight updates, or stages and devices
                differ in number.
            FailedPreconditionError: if the schedule needs another number of micro-batches.
        """
        count = spec.options.accumulation.gradient_accumulation
        checks.multiple("iterations_per_loop", self.config.steps_per_execution, _COUNT, count)
        shards, needed = self.ipu_config.num_shards, spec.devices
        if not shards / 2 < needed <= shards:
            raise ValueError(
                f"The pipeline takes {needed} devices, but num_shards={shards}. Pass "
                f"{1 << (needed - 1).bit_length()}."
            )
        stages, training = len(spec.computational_stages), spec.mode == ModeKeys.TRAIN
        spec.options.check(stages, config, training=training, name=_COUNT)
