"""`pipeline`: functions as stages, each on a device of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import jax
from convoy.ipu import ipu_strategy, program, scopes, system
from convoy.ipu.enums import (
    GradientAccumulationReductionMethod,
    PipelineSchedule,
    RecomputationMode,
)
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
from convoy.ipu.ipu_outfeed_queue import IPUOutfeedQueue
from convoy.ipu.keras import pipeline_options
from convoy.ipu.pipelining import arguments
from convoy.ipu.pipelining.graph import Data
from convoy.ipu.pipelining.network import Description, Network
from convoy.ipu.pipelining.outfeed import Dtype, Outfeed
from convoy.ipu.pipelining.weights import same, trained_with
from convoy.ipu.pipelining.words import OptimizerFunctionOutput, PipelineStageOptions
from convoy.ipu.reports import report_folder


def pipeline(
    computational_stages: Sequence[Any],
    gradient_accumulation_count: int | None = None,
    gradient_accumulation_dtype: Any = None,
    gradient_accumulation_for_captured_grads: bool = True,
    repeat_count: int = 1,
    batch_serialization_iterations: int = 1,
    inputs: Any = None,
    infeed_queue: IPUInfeedQueue | None = None,
    outfeed_queue: IPUOutfeedQueue | None = None,
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None,
    device_mapping: Sequence[Any] | None = None,
    pipeline_schedule: PipelineSchedule | None = None,
    recomputation_mode: RecomputationMode | None = None,
    forward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None,
    backward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None,
    weight_update_poplar_options: PipelineStageOptions | None = None,
    offload_weight_update_variables: bool | None = None,
    replicated_optimizer_state_sharding: bool = False,
    offload_activations: bool | None = None,
    offload_gradient_accumulation_buffers: bool | None = None,
    replicated_weight_sharding: bool | None = None,
    offload_weights: bool | None = None,
    continuous_weight_updates: bool = False,
    outfeed_loss: bool = False,
    accumulate_outfeed: bool = False,
    accumulate_outfeed_dtype: Dtype = None,
    outfeed_mask: Sequence[bool] | None = None,
    reduction_method: str | GradientAccumulationReductionMethod = "sum",
    name: str | None = None,
) -> None:
    """Run functions as the stages of a pipeline: train them, or compute what the last returns.

    It runs at once, also inside of `ipu_compiler.compile` and `strategy.run`. Stages are called on
    tensors without values, the first time only: they consist of Keras layers and `keras.ops`.
    Layers that are made in a stage are kept, so calling the same functions again goes on with the
    same weights.

    Args:
        computational_stages: functions, two or more. Each takes what the one before it returned: a
            tensor, several, or a dict of them by name. A list in the place of a function holds
            functions that are all given the same; what they return is put together.
        gradient_accumulation_count: micro-batches of an execution, and of a weight update.
        gradient_accumulation_dtype: in which gradients are added up; by default their own.
        gradient_accumulation_for_captured_grads: has no effect.
        repeat_count: how many executions, with a weight update each.
        batch_serialization_iterations: so many times more micro-batches. For stages that all are
            on one device, with the Sequential schedule.
        inputs: arrays or numbers that the first stage is given for every micro-batch.
        infeed_queue: an element for each micro-batch and replica comes behind them: a tuple as
            several arguments, a dict by name.
        outfeed_queue: what the last stage returns goes there: a list of it, if it trains.
        optimizer_function: is given what the last stage returned, and returns an
            `OptimizerFunctionOutput`. Without it nothing is trained. The gradients of a loss of
            several numbers are those of their sum; what layers add to a loss is added.
        device_mapping: the device of each stage, from 0; by default one for each.
        pipeline_schedule: by default Grouped.
        recomputation_mode: by default Auto; counts if the configuration has `allow_recompute`.
        forward_propagation_stages_poplar_options: have no effect, as have the next seven.
        backward_propagation_stages_poplar_options: a list with an entry for each stage.
        weight_update_poplar_options: one entry.
        offload_weight_update_variables: of the optimizer.
        replicated_optimizer_state_sharding: needs the one before it.
        offload_activations: between stages.
        offload_gradient_accumulation_buffers: of the sums.
        replicated_weight_sharding: of the weights.
        offload_weights: of the weights.
        continuous_weight_updates: must be `False`.
        outfeed_loss: whether the loss goes into the queue, and nothing else.
        accumulate_outfeed: whether the micro-batches of an execution are added up for the queue.
        accumulate_outfeed_dtype: in which; a function is given each tensor and returns its type.
        outfeed_mask: for each output of the last stage whether it does not go into the queue.
        reduction_method: of the gradients of micro-batches: `SUM`, `MEAN` or `RUNNING_MEAN`.
        name: of the network, in reports and errors.

    Raises:
        TypeError: if an argument is not of its type.
        ValueError: if one is missing or out of range, or does not go together with others.
        FailedPreconditionError: if the schedule wants another number of micro-batches.
        NotImplementedError: if the schedule does not go together with the rest.

    Example:
    ```python
    def first(images, labels):
        return keras.layers.Dense(64, activation="relu")(images), labels

    def second(x, labels):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return loss(labels, keras.layers.Dense(10)(x))

    def optimizer_function(loss):
        return OptimizerFunctionOutput(keras.optimizers.SGD(0.01), loss)

    pipeline([first, second], 8, repeat_count=10, infeed_queue=infeed, outfeed_queue=outfeed,
             optimizer_function=optimizer_function)
    losses = outfeed.dequeue()[0]
    ```
    """
    if program.tape() is not None:
        raise program.NeedsHostError
    training = optimizer_function is not None
    if training and not callable(optimizer_function):
        raise TypeError(f"optimizer_function={optimizer_function!r} is not a function.")
    if infeed_queue is not None and not isinstance(infeed_queue, IPUInfeedQueue):
        raise TypeError(f"infeed_queue is {type(infeed_queue).__name__}, not an IPUInfeedQueue.")
    stages = arguments.read_stages(computational_stages)
    number = arguments.read_number
    count = number(arguments.COUNT, gradient_accumulation_count)
    repeat = number("repeat_count", repeat_count)
    parts = number("batch_serialization_iterations", batch_serialization_iterations)
    if parts > 1 and pipeline_schedule is None:
        pipeline_schedule = PipelineSchedule.Sequential
    if parts > 1 and device_mapping is None:
        device_mapping = [0] * len(stages)
    options = pipeline_options.read(
        count,
        arguments.read_mapping(device_mapping, stages),
        GradientAccumulationReductionMethod.parse(reduction_method if training else "sum"),
        {
            "pipeline_schedule": pipeline_schedule,
            "recomputation_mode": recomputation_mode,
            "gradient_accumulation_dtype": gradient_accumulation_dtype,
            "gradient_accumulation_for_captured_grads": (
                not gradient_accumulation_for_captured_grads
            ),
            "forward_propagation_stages_poplar_options": forward_propagation_stages_poplar_options,
            "backward_propagation_stages_poplar_options": (
                backward_propagation_stages_poplar_options
            ),
            "weight_update_poplar_options": weight_update_poplar_options,
            "offload_weight_update_variables": offload_weight_update_variables,
            "replicated_optimizer_state_sharding": replicated_optimizer_state_sharding,
            "offload_activations": offload_activations,
            "offload_gradient_accumulation_buffers": offload_gradient_accumulation_buffers,
            "replicated_weight_sharding": replicated_weight_sharding,
            "offload_weights": offload_weights,
            "continuous_weight_updates": continuous_weight_updates,
        },
        "pipeline",
    )
    config = system.in_force().config
    arguments.check_schedule(options, len(stages), config, training=training)
    arguments.check_serialization(options, parts)
    mask = None if outfeed_mask is None else tuple(outfeed_mask)
    outfeed = Outfeed(
        outfeed_queue, outfeed_loss, mask, accumulate_outfeed, accumulate_outfeed_dtype
    )
    outfeed.check(training=training)
    data = Data(arguments.listed(inputs), infeed_queue)
    devices, reduction = _devices()
    placed, mapping = _placed(devices, options.device_mapping or [])
    _run(
        Description(
            stages=stages,
            optimizer_function=optimizer_function,
            options=replace(options, count=count * parts, device_mapping=mapping),
            outfeed=outfeed,
            name=name or "pipeline",
            recompute=config.allow_recompute,
            devices=placed,
            replicas=len(placed) // len(set(mapping)),
            reduction=reduction,
            settings=ipu_strategy.settings(config),
            reports=report_folder(config),
        ),
        data,
        repeat,
    )


def _run(description: Description, data: Data, repeat: int) -> None:
    """Run a pipeline, by a network that was built before if there is one."""
    host = program.host()
    place: Any = same(description.optimizer_function)
    if host is not None:
        host.pipelines += 1
        place = host.origin, host.pipelines
    trained = trained_with(description.stages, host)
    network = trained.network(
        (place, description.key, data.key), lambda: Network(description, data, repeat)
    )
    network.run(description.outfeed, data, repeat)


def _devices() -> tuple[tuple[jax.Device, ...], Literal["sum", "mean"] | None]:
    """Return where the pipeline runs, and what a strategy does with the gradients of replicas."""
    host, strategy = program.host(), ipu_strategy.current()
    reduction = None if strategy is None else strategy.reduction
    if host is not None:
        return tuple(host.devices), host.reduction or reduction
    if strategy is not None:
        return strategy.devices, reduction
    return system.devices_of(scopes.current_device()), None


def _placed(
    devices: Sequence[jax.Device], mapping: list[int]
) -> tuple[tuple[jax.Device, ...], list[int]]:
    """Return the devices of all replicas that stages are on, and a mapping to these.

    A replica takes a power of two devices, of which some may be left over.

    Raises:
        ValueError: if there is no place for one.
    """
    width = max(mapping) + 1
    if width > len(devices) or min(mapping) < 0:
        raise ValueError(
            f"device_mapping={mapping} asks for devices 0 to {width - 1}, but {len(devices)} are "
            "configured. Select more, or pass a device_mapping that shares devices."
        )
    span = 1 << (width - 1).bit_length()
    used = sorted(set(mapping))
    starts = range(0, max(1, len(devices) // span) * span, span)
    placed = tuple(devices[start + place] for start in starts for place in used)
    return placed, [used.index(place) for place in mapping]
