"""`pipeline`: functions as pipeline stages, each on its own device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from convoy.engine.step.all_reduce import Reduction
from convoy.estimator.spec import check_stage_count
from convoy.estimator.user_functions import as_list
from convoy.ipu import checks, ipu_strategy, program, scopes
from convoy.ipu import config as ipu_config
from convoy.ipu.enums import (
    GradientAccumulationReductionMethod,
    PipelineSchedule,
    RecomputationMode,
)
from convoy.ipu.environment import report_folder
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
from convoy.ipu.ipu_outfeed_queue import IPUOutfeedQueue
from convoy.ipu.pipelining import options as pipeline_options
from convoy.ipu.pipelining.graph import PipelineInput, Stages
from convoy.ipu.pipelining.network import Description, Network
from convoy.ipu.pipelining.options import (
    OptimizerFunctionOutput,
    PipelineOptions,
    PipelineStageOptions,
)
from convoy.ipu.pipelining.outfeed import Dtype, Outfeed
from convoy.ipu.pipelining.weights import function_key, networks_of

COUNT = "gradient_accumulation_count"


def read_number(name: str, value: Any) -> int:
    """Return a number, which may be an array without axes.

    Raises:
        ValueError: if it is not an integer from 1 to 2**31 - 1.
    """
    if value is None:
        raise ValueError(f"{name} was not passed. Pass a number of 1 or more.")
    array = np.asarray(value)
    if array.shape or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name}={value!r} is not a number. Pass an int of 1 or more.")
    if not 1 <= int(array) < 2**31:
        raise ValueError(f"{name}={int(array)} is out of range. Pass 1 to {2**31 - 1}.")
    return int(array)


def read_stages(given: Any) -> Stages:
    """Return the functions of each stage.

    Raises:
        TypeError: if it is not a list of functions, or of lists of functions.
        ValueError: if there are fewer than two stages.
    """
    checks.instance("computational_stages", given, (list, tuple), "a list of functions")
    check_stage_count(given)
    stages = tuple(tuple(s) if isinstance(s, (list, tuple)) else (s,) for s in given)
    for number, functions in enumerate(stages):
        if not functions:
            raise ValueError(f"Stage {number} is an empty list. Pass a function.")
        for function in functions:
            if not callable(function):
                raise TypeError(f"Stage {number} has {function!r} in it. Pass a function.")
    return stages


def read_mapping(given: Any, stages: Stages) -> list[int]:
    """Return the device of each function; by default each has its own.

    Raises:
        TypeError: if it is not a list.
        ValueError: if it does not have an entry for each stage.
    """
    if given is None:
        return list(range(sum(map(len, stages))))
    checks.instance("device_mapping", given, (list, tuple), "a list")
    checks.one_per_stage(f"device_mapping={list(given)}", given, len(stages))
    flat: list[int] = []
    for number, (functions, entry) in enumerate(zip(stages, given, strict=True)):
        devices = list(entry) if isinstance(entry, (list, tuple)) else [entry] * len(functions)
        if len(devices) != len(functions):
            raise ValueError(
                f"device_mapping has {entry!r} for stage {number}, which has {len(functions)} "
                "functions. Pass a device for each, or one for all."
            )
        flat += devices
    return flat


def check_serialization(options: PipelineOptions, iterations: int) -> None:
    """Check the options of a pipeline that serialises the parts of micro-batches.

    Raises:
        ValueError: if gradients are not summed.
        NotImplementedError: if the schedule is not Sequential, or stages are on several devices.
    """
    if iterations == 1:
        return
    name = f"batch_serialization_iterations={iterations}"
    if options.method != GradientAccumulationReductionMethod.SUM:
        raise ValueError(
            f"{name} needs reduction_method SUM, but it is {options.method.name}. Pass SUM."
        )
    if options.schedule != PipelineSchedule.Sequential:
        raise NotImplementedError(
            f"{name} does not support the {options.schedule.name} schedule. Pass Sequential."
        )
    if len(set(options.device_mapping or [])) != 1:
        raise NotImplementedError(
            f"{name} needs all stages on one device, but device_mapping={options.device_mapping}. "
            "Pass the same device for each."
        )


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
    """Run functions as pipeline stages: train them, or compute the outputs of the last stage.

    The pipeline runs at once, also inside `ipu_compiler.compile` and `strategy.run`. Stages are
    called with symbolic tensors, only the first time: they consist of Keras layers and
    `keras.ops`. Layers that are made in a stage are kept, so that later calls of the same functions
    continue with the same weights.

    Args:
        computational_stages: two or more functions. Each takes what the previous one returned: a
            tensor, several tensors, or a dict of keyword arguments. A list of functions is one
            stage of concurrent functions with the same arguments, whose results are concatenated.
        gradient_accumulation_count: micro-batches per execution, and per weight update.
        gradient_accumulation_dtype: dtype of the accumulated gradients; by default their own.
        gradient_accumulation_for_captured_grads: no effect.
        repeat_count: number of executions, with one weight update each.
        batch_serialization_iterations: factor of the number of micro-batches. Requires that all
            stages are on one device, and the Sequential schedule.
        inputs: arrays or numbers that are passed to the first stage for every micro-batch.
        infeed_queue: a queue with an element for each micro-batch and replica, passed after
            `inputs`: a tuple as several arguments, a dict as keyword arguments.
        outfeed_queue: a queue for the outputs of the last stage; in training, for a list of them.
        optimizer_function: a function of the last stage's outputs. Returns an
            `OptimizerFunctionOutput`. Without it, nothing is trained. A loss with several elements
            is summed; losses that layers add are added.
        device_mapping: the device of each stage, from 0; by default one device per stage.
        pipeline_schedule: the pipeline schedule; by default Grouped (GPipe).
        recomputation_mode: the mode of activation checkpointing, by default Auto; used if the
            configuration has `allow_recompute`.
        forward_propagation_stages_poplar_options: no effect; a list with an entry per stage.
        backward_propagation_stages_poplar_options: no effect; a list with an entry per stage.
        weight_update_poplar_options: no effect.
        offload_weight_update_variables: no effect.
        replicated_optimizer_state_sharding: no effect; requires that
            `offload_weight_update_variables` is not `False`.
        offload_activations: no effect.
        offload_gradient_accumulation_buffers: no effect.
        replicated_weight_sharding: no effect.
        offload_weights: no effect.
        continuous_weight_updates: must be `False`.
        outfeed_loss: whether only the loss is put into the queue.
        accumulate_outfeed: whether outputs are summed over the micro-batches of an execution.
        accumulate_outfeed_dtype: dtype of these sums, or a function that returns it for a tensor.
        outfeed_mask: for each output of the last stage, whether it is left out of the queue.
        reduction_method: reduction of the gradients of micro-batches: `SUM`, `MEAN` or
            `RUNNING_MEAN`.
        name: name of the network in reports and errors.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is missing, out of range, or contradicts another.
        FailedPreconditionError: if the schedule needs another number of micro-batches.
        NotImplementedError: if the schedule cannot train with these options.

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
    given = dict(locals())  # all arguments, by name
    if program.tape() is not None:
        raise program.NeedsHostError
    training = optimizer_function is not None
    if training and not callable(optimizer_function):
        raise TypeError(f"optimizer_function={optimizer_function!r} is not a function. Pass one.")
    checks.instance("infeed_queue", infeed_queue, IPUInfeedQueue, "an IPUInfeedQueue")
    stages = read_stages(computational_stages)
    count = read_number(COUNT, gradient_accumulation_count)
    repeat = read_number("repeat_count", repeat_count)
    parts = read_number("batch_serialization_iterations", batch_serialization_iterations)
    if parts > 1 and pipeline_schedule is None:
        given["pipeline_schedule"] = PipelineSchedule.Sequential
    if parts > 1 and device_mapping is None:
        device_mapping = [0] * len(stages)
    # On by default, and without effect either way: only turning it off is logged.
    captured = "gradient_accumulation_for_captured_grads"
    given[captured] = not given[captured]
    # Unlike for a Keras model, these two have an effect.
    names = set(pipeline_options.NAMES) - {"name", "accumulate_outfeed_dtype"}
    mapping = read_mapping(device_mapping, stages)
    chosen = {name: value for name, value in given.items() if name in names}
    method = reduction_method if training else "sum"
    options = pipeline_options.read(count, mapping, method, chosen, "pipeline")
    config = ipu_config.applied().config
    # Concurrent functions have a device each, but are one stage.
    is_shared = len(set(mapping)) < len(mapping)
    checked = options if is_shared else replace(options, device_mapping=None)
    checked.check(len(stages), config, training=training, name=COUNT)
    check_serialization(options, parts)
    mask = None if outfeed_mask is None else tuple(outfeed_mask)
    outfeed = Outfeed(
        outfeed_queue, outfeed_loss, mask, accumulate_outfeed, accumulate_outfeed_dtype
    )
    outfeed.check(training=training)
    data = PipelineInput(as_list(inputs), infeed_queue)
    devices, reduction = _devices()
    used_devices, mapping = _used_devices(devices, mapping)
    description = Description(
        stages=stages,
        optimizer_function=optimizer_function,
        options=replace(options, gradient_accumulation=count * parts, device_mapping=mapping),
        outfeed=outfeed,
        name=name or "pipeline",
        activation_checkpointing=config.allow_recompute,
        devices=used_devices,
        replicas=len(used_devices) // len(set(mapping)),
        reduction=reduction,
        strategy_options=ipu_strategy.strategy_options(config),
        reports=report_folder(config.compilation_poplar_options),
    )
    _run(description, data, repeat)


def _run(description: Description, data: PipelineInput, repeat: int) -> None:
    """Run a pipeline, on a network that was built before if there is one."""
    host = program.host()
    key: Any = function_key(description.optimizer_function)
    if host is not None:
        host.pipelines += 1
        key = host.origin, host.pipelines
    network = networks_of(description.stages, host).get(
        (key, description.key, data.key), lambda: Network(description, data, repeat)
    )
    network.run(description.outfeed, data, repeat)


def _devices() -> tuple[tuple[jax.Device, ...], Reduction | None]:
    """Return the devices of the pipeline, and the gradient reduction of the current strategy."""
    host, strategy = program.host(), ipu_strategy.current()
    reduction = None if strategy is None else strategy.reduction
    if host is not None:
        return tuple(host.devices), host.reduction or reduction
    if strategy is not None:
        return strategy.devices, reduction
    return ipu_config.devices_of(scopes.current_device()), None


def _used_devices(
    devices: Sequence[jax.Device], mapping: list[int]
) -> tuple[tuple[jax.Device, ...], list[int]]:
    """Return the devices of all replicas that hold stages, and a mapping to these.

    A replica takes a power of two of devices, some of which may be unused.

    Raises:
        ValueError: if there are too few devices for one replica.
    """
    width = max(mapping) + 1
    if width > len(devices) or min(mapping) < 0:
        raise ValueError(
            f"device_mapping={mapping} needs devices 0 to {width - 1}, but {len(devices)} are "
            "configured. Select more, or pass a device_mapping that shares devices."
        )
    span = 1 << (width - 1).bit_length()
    used = sorted(set(mapping))
    starts = range(0, max(1, len(devices) // span) * span, span)
    placed = tuple(devices[start + index] for start in starts for index in used)
    return placed, [used.index(index) for index in mapping]
