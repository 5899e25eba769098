"""The rules of what `pipeline` is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from convoy.ipu.config import IPUConfig
from convoy.ipu.enums import GradientAccumulationReductionMethod, PipelineSchedule
from convoy.ipu.keras.pipeline_options import PipelineOptions
from convoy.ipu.pipelining.graph import Stages

COUNT = "gradient_accumulation_count"


def read_number(name: str, value: Any) -> int:
    """Return a number of something, which may be an array without axes.

    Raises:
        ValueError: if it is not one of 1 or more, and of 32 bits.
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
        TypeError: if it is not a list of functions, and of lists of them.
        ValueError: if there are fewer than two.
    """
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"computational_stages is {type(given).__name__}, not a list of functions.")
    if len(given) < 2:
        raise ValueError(f"A pipeline has two stages or more, but received {len(given)}.")
    stages = tuple(tuple(s) if isinstance(s, (list, tuple)) else (s,) for s in given)
    for number, functions in enumerate(stages):
        if not functions:
            raise ValueError(f"Stage {number} is an empty list. Pass a function.")
        for function in functions:
            if not callable(function):
                raise TypeError(
                    f"Stage {number} has {function!r} in it, which is not a function. Pass "
                    "functions, or lists of functions for one stage."
                )
    return stages


def read_mapping(given: Any, stages: Stages) -> list[int]:
    """Return the device of every function: by default, each has its own.

    Raises:
        TypeError: if it is not a list.
        ValueError: if it has not an entry for each stage, or devices have gaps.
    """
    if given is None:
        return list(range(sum(map(len, stages))))
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"device_mapping={given!r} is not a list.")
    if len(given) != len(stages):
        raise ValueError(
            f"device_mapping={list(given)} has {len(given)} entries for {len(stages)} stages. Pass "
            "one for each."
        )
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


def check_schedule(
    options: PipelineOptions, stages: int, config: IPUConfig, *, training: bool
) -> None:
    """Refuse a number of micro-batches, or devices, that the schedule does not go together with.

    Raises:
        ValueError: if an option has not an entry for each stage.
        FailedPreconditionError: if the schedule wants another number of micro-batches.
        NotImplementedError: if the schedule does not train like this.
    """
    on_io_tiles = config.io_tiles.place_ops_on_io_tiles
    mapping = options.device_mapping or []
    if len(set(mapping)) == len(mapping):
        # Concurrent functions have a device each, but are one stage.
        options = replace(options, device_mapping=None)
    if not training:
        options.check_stage_options(stages)
        options.check_count(COUNT, stages, stages, on_io_tiles)
        return
    options.check(stages, on_io_tiles=on_io_tiles, name=COUNT)
    if config.allow_recompute:
        options.check_recomputation()


def check_serialization(options: PipelineOptions, iterations: int) -> None:
    """Refuse to go through parts of micro-batches with other options than Graphcore's can.

    Raises:
        ValueError: if gradients are not added up.
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


def listed(inputs: Any) -> list[Any]:
    """Return inputs as a list: none, one, or several."""
    if inputs is None:
        return []
    return list(inputs) if isinstance(inputs, Sequence) else [inputs]
