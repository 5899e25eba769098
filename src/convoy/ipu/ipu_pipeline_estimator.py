"""`IPUPipelineEstimator`: stages on devices of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import convoy
from convoy.estimator import EstimatorSpec, Hook, ModeKeys, WarmStart, arguments
from convoy.estimator.input import Element
from convoy.estimator.pipeline_estimator import (
    call_with,
    predictions_of,
    run_stages,
    with_loss,
)
from convoy.estimator.spec import Accumulated, Built, Stages
from convoy.ipu import optimizers
from convoy.ipu.accumulation import Accumulation
from convoy.ipu.enums import GradientAccumulationReductionMethod
from convoy.ipu.ipu_estimator import IPUEstimator
from convoy.ipu.ipu_run_config import RunConfig
from convoy.ipu.keras import pipeline_options
from convoy.ipu.keras.pipeline_options import SCHEDULES, PipelineOptions
from convoy.ipu.pipelining.words import OptimizerFunctionOutput

__all__ = ["IPUPipelineEstimator", "IPUPipelineEstimatorSpec", "ModeKeys"]


class IPUPipelineEstimatorSpec:
    """A network in stages, for one mode.

    Args:
        mode: as the model function was told.
        computational_stages: functions. The first takes features and labels (in `PREDICT`
            features alone), each of the others what the one before it returned.
        gradient_accumulation_count: micro-batches of a weight update.
        eval_metrics_fn: is given the values of what the last stage returned, for all samples, and
            returns numbers by name, `loss` among them. Needed in `EVAL`.
        optimizer_function: is given what the last stage returned, and returns an
            `OptimizerFunctionOutput`. Needed in `TRAIN`.
        device_mapping: the device of each stage; by default one for each.
        loss_accumulator_dtype: has no effect: losses are added up in float32.
        training_hooks: told of `train`.
        evaluation_hooks: told of `evaluate`.
        prediction_hooks: told of `predict`.
        reduction_method: of the gradients of micro-batches.
        pipeline_depth: the earlier name of `gradient_accumulation_count`.
        pipeline_op_kwargs: `pipeline_schedule`, `recomputation_mode`,
            `gradient_accumulation_dtype`; others are checked and have no effect.

    Raises:
        ValueError: if something that the mode needs is missing, or an option is not its own.
    """

    def __init__(
        self,
        mode: ModeKeys | str,
        computational_stages: Sequence[Callable[..., Any]],
        gradient_accumulation_count: int | None = None,
        eval_metrics_fn: Callable[..., Mapping[str, Any]] | None = None,
        optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
        device_mapping: Sequence[int] | None = None,
        loss_accumulator_dtype: Any = None,
        training_hooks: Sequence[Hook] = (),
        evaluation_hooks: Sequence[Hook] = (),
        prediction_hooks: Sequence[Hook] = (),
        reduction_method: str | GradientAccumulationReductionMethod = "sum",
        pipeline_depth: int | None = None,
        **pipeline_op_kwargs: Any,
    ) -> None:
        del loss_accumulator_dtype
        count = gradient_accumulation_count
        if count is None:
            count = pipeline_depth
        if count is None:
            raise ValueError("The spec has no gradient_accumulation_count. Pass it in every mode.")
        pipeline_options.check_count(count)
        if not isinstance(computational_stages, (list, tuple)):
            raise TypeError(
                f"computational_stages is {type(computational_stages).__name__}, not a list."
            )
        if len(computational_stages) < 2:
            raise ValueError(
                f"A pipeline has two stages or more, but received {len(computational_stages)}."
            )
        if mode == ModeKeys.TRAIN and optimizer_function is None:
            raise ValueError("The spec for TRAIN has no optimizer_function. Pass it.")
        if mode == ModeKeys.EVAL and eval_metrics_fn is None:
            raise ValueError("The spec for EVAL has no eval_metrics_fn. Pass it.")
        mapping = None if device_mapping is None else list(device_mapping)
        if mapping is not None and len(mapping) != len(computational_stages):
            raise ValueError(
                f"device_mapping={mapping} has {len(mapping)} entries for the "
                f"{len(computational_stages)} stages. Pass one for each."
            )
        method = GradientAccumulationReductionMethod.parse(reduction_method)
        self.mode = mode
        self.computational_stages = tuple(computational_stages)
        self.eval_metrics_fn = eval_metrics_fn
        self.optimizer_function = optimizer_function
        self.hooks = {
            ModeKeys.TRAIN: tuple(training_hooks),
            ModeKeys.EVAL: tuple(evaluation_hooks),
            ModeKeys.PREDICT: tuple(prediction_hooks),
        }[ModeKeys(mode)]
        self.options: PipelineOptions = pipeline_options.read(
            count, mapping, method, pipeline_op_kwargs, "IPUPipelineEstimatorSpec"
        )

    @property
    def devices(self) -> int:
        """How many devices a replica takes."""
        mapping = self.options.device_mapping
        return len(self.computational_stages if mapping is None else set(mapping))


class IPUPipelineEstimator(IPUEstimator):
    """Trains, evaluates and predicts with a network in stages.

    `iterations_per_loop`, `steps` and the global step count micro-batches.

    Args:
        model_fn: takes what it names of `mode`, `params` and `config`. Returns an
            `IPUPipelineEstimatorSpec`.
        model_dir: where checkpoints are; by default that of the config.
        config: a `RunConfig` of `ipu.ipu_run_config`; `num_shards` are the devices of a replica.
        params: handed to both functions.
        warm_start_from: a checkpoint, a folder of them, or a `convoy.estimator.WarmStart`.
    """

    known_arguments = ("mode", "params", "config")

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: dict[str, Any] | None = None,
        warm_start_from: str | Path | WarmStart | None = None,
    ) -> None:
        super().__init__(model_fn, model_dir, config, params, warm_start_from)

    def _automatic_stages(self) -> int:
        return 1

    def _build(self, mode: ModeKeys, params: dict[str, Any], tensors: Element) -> Built:
        offered = {"mode": mode, "params": params, "config": self.config}
        spec = arguments.call(self.model_fn, offered)
        if not isinstance(spec, IPUPipelineEstimatorSpec):
            raise TypeError(
                f"The model function returned {type(spec).__name__}, not an "
                "IPUPipelineEstimatorSpec."
            )
        self._check(spec)
        options = spec.options
        outputs = run_stages(spec.computational_stages, tensors, mode)
        stages = Stages(
            len(spec.computational_stages) - 1,
            SCHEDULES[options.schedule],
            options.device_mapping,
            recompute=self._recomputes(),
        )
        accumulation = Accumulation(options.count or 1, options.method, options.dtype)
        accumulated = Accumulated(accumulation.count, accumulation.reduction, accumulation.dtype)
        if mode == ModeKeys.TRAIN:
            return self._to_train(spec, outputs, stages, accumulated)
        if mode == ModeKeys.EVAL:
            assert spec.eval_metrics_fn is not None
            metrics = with_loss(spec.eval_metrics_fn), outputs
            made = EstimatorSpec(mode, host_metrics=metrics, hooks=spec.hooks)
        else:
            made = EstimatorSpec(mode, predictions_of(outputs), hooks=spec.hooks)
        return Built(made, stages, accumulated, self._placed(spec))

    def _to_train(
        self,
        spec: IPUPipelineEstimatorSpec,
        outputs: Any,
        stages: Stages,
        accumulated: Accumulated,
    ) -> Built:
        assert spec.optimizer_function is not None
        with convoy.PipelineStage(stages.last):
            (output,) = call_with(spec.optimizer_function, outputs)
        if not isinstance(output, OptimizerFunctionOutput):
            raise TypeError(
                f"optimizer_function returned {type(output).__name__}, not an "
                "OptimizerFunctionOutput."
            )
        wishes = optimizers.read(output.opt)
        if wishes.accumulation is not None:
            raise ValueError(
                "The optimizer accumulates gradients, and so does the pipeline. Pass "
                "gradient_accumulation_count alone."
            )
        made = EstimatorSpec(
            ModeKeys.TRAIN, loss=output.loss, optimizer=wishes.optimizer, hooks=spec.hooks
        )
        strategy = self._scaled(wishes) or self._placed(spec)
        return Built(made, stages, accumulated, strategy, wishes.gradient_map)

    def _recomputes(self) -> bool:
        options = self.ipu_config.ipu.ipu_options
        return options is not None and bool(options.allow_recompute)

    def _is_on_io_tiles(self) -> bool:
        options = self.ipu_config.ipu.ipu_options
        return options is not None and bool(options.io_tiles.place_ops_on_io_tiles)

    def _check(self, spec: IPUPipelineEstimatorSpec) -> None:
        """Refuse numbers that do not fit together.

        Raises:
            ValueError: if device calls would not be whole weight updates, or stages and devices
                differ in number.
            FailedPreconditionError: if the schedule wants another number of micro-batches.
        """
        options, stages = spec.options, len(spec.computational_stages)
        count, loop = options.count or 1, self.config.steps_per_execution
        if loop < count or loop % count:
            raise ValueError(
                f"iterations_per_loop={loop} is not a multiple of gradient_accumulation_count="
                f"{count}. Choose a multiple: it counts micro-batches."
            )
        shards, needed = self.ipu_config.ipu.num_shards, spec.devices
        if not shards / 2 < needed <= shards:
            raise ValueError(
                f"The pipeline takes {needed} devices, but num_shards={shards}. Pass "
                f"{1 << (needed - 1).bit_length()}."
            )
        on_io_tiles = self._is_on_io_tiles()
        if spec.mode != ModeKeys.TRAIN:
            options.check_count("gradient_accumulation_count", stages, stages, on_io_tiles)
            return
        options.check(stages, on_io_tiles=on_io_tiles, name="gradient_accumulation_count")
        if self._recomputes():
            options.check_recomputation()

    def _placed(self, spec: IPUPipelineEstimatorSpec) -> convoy.Strategy | None:
        """Return a strategy without devices that no stage has a place on, if there are such."""
        assert self.config.strategy is not None
        devices = self.config.strategy.devices
        wanted = spec.devices * self.ipu_config.ipu.num_replicas
        if len(devices) == wanted:
            return None
        return convoy.Strategy(devices[:wanted], **self._engine_settings)
