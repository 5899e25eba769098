"""Checks of the arguments of `pipeline`."""

from typing import Any

import numpy as np
from convoy.estimator.spec import check_stage_count
from convoy.ipu import checks
from convoy.ipu.enums import GradientAccumulationReductionMethod, PipelineSchedule
from convoy.ipu.pipelining.graph import Stages
from convoy.ipu.pipelining.options import PipelineOptions

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
        raise ValueError(f"{name}={int(array)} is out of range. Pass 1 or more, in 32 bits.")
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
                raise TypeError(f"Stage {number} has {function!r} in it, which is not a function.")
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
        raise ValueError(f"{name} needs reduction_method SUM, but it is {options.method.name}.")
    if options.schedule != PipelineSchedule.Sequential:
        raise NotImplementedError(
            f"{name} needs the Sequential schedule, but it is {options.schedule.name}."
        )
    if len(set(options.device_mapping or [])) != 1:
        raise NotImplementedError(
            f"{name} needs all stages on one device, but device_mapping={options.device_mapping}."
        )
