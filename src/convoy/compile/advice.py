"""Suggestions for a run that does not fit into the memory of a target's devices."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from convoy.compile.analysis import ObservedRun
from convoy.engine.data.placement import tree_bytes
from convoy.engine.step.activation_checkpointing import held_bytes, segments_of
from convoy.keras_bridge import is_subclassed, values
from convoy.pipeline.config import PipelineConfig
from convoy.pipeline.stages import stage_assignment

# Part of a device's memory that a run may take after a change. The rest stays free, because
# temporary memory does not shrink exactly with the batch.
USABLE = 0.9
# Memory of the largest stage of a pipeline relative to the average, because stages are balanced by
# their times.
LARGEST_STAGE = 1.5
# Temporary memory of a backward pass relative to the activations that it holds, because it also
# holds gradients of activations.
BACKWARD = 1.5
MAX_STAGES = 16


class MemoryNeed(NamedTuple):
    """Bytes that a run needs on a device.

    Attributes:
        total: all bytes.
        state: the part of weights, statistics and optimizer state.
        fixed: the part that does not depend on the micro-batch: state and data.
    """

    total: int
    state: int
    fixed: int


class Demand(NamedTuple):
    """The memory that a program, or a device of a pipeline, needs.

    Attributes:
        name: name of the program or the device.
        need: required bytes.
        available: bytes that a device has.
        run: the run that it belongs to.
    """

    name: str
    need: MemoryNeed
    available: int
    run: ObservedRun


def advise(demand: Demand, devices: int) -> list[str]:
    """Return changes, each of which should make a run fit, the smallest change first.

    Args:
        demand: the program or device that does not fit.
        devices: number of devices of the target.
    """
    _, need, available, run = demand
    limit = int(available * USABLE)
    gradients = _gradient_bytes(run)
    need = need._replace(fixed=min(need.fixed + gradients, need.total))
    found = [*_smaller_batch(need, limit, run)]
    if run.name == "fit":
        found += _activation_checkpointing(need, available, run)
        found += _shards(need, limit, run)
        found += _stages(need, gradients, limit, devices, run)
    return found or ["devices with more memory"]


def _gradient_bytes(run: ObservedRun) -> int:
    """Return the bytes of gradients, which do not depend on the micro-batch either.

    With gradient accumulation, there are also those of the micro-batches before. The state of
    pipeline stages contains them already.
    """
    if run.name != "fit" or run.config.pipeline is not None:
        return 0
    arrays = 1 if run.config.gradient_accumulation == 1 else 2
    return arrays * tree_bytes(values(run.model.trainable_variables))


def _smaller_batch(need: MemoryNeed, limit: int, run: ObservedRun) -> Iterator[str]:
    config = run.config
    if run.name == "serve":
        if need.fixed <= limit:
            yield "smaller batch sizes (convoy export --batch-sizes)"
        return
    local = run.batch // config.replicas
    fitting = local * (limit - need.fixed) // max(1, need.total - need.fixed)
    if local < 2 or fitting < 1:
        return
    smaller = 1 << (min(fitting, local - 1).bit_length() - 1)
    text = f"a micro-batch of {smaller} instead of {local}"
    if run.name != "fit":
        yield f"{text} (--validation-micro-batch-size {smaller}, batch_size={smaller})"
        return
    steps = config.gradient_accumulation * ceil(local / smaller)
    if config.batch == "global":
        yield f"{text}: gradient accumulation over {steps} micro-batches"
        return
    yield (
        f"{text} (--micro-batch-size {smaller}, batch_size={smaller}); gradient accumulation over "
        f"{steps} micro-batches keeps the global batch"
    )


def _activation_checkpointing(need: MemoryNeed, available: int, run: ObservedRun) -> Iterator[str]:
    config, pipeline = run.config, run.config.pipeline
    if isinstance(pipeline, PipelineConfig):
        if not pipeline.activation_checkpointing:
            yield (
                "activation checkpointing (--activation-checkpointing, "
                "set_pipelining_options(activation_checkpointing=True))"
            )
        return
    if config.activation_checkpointing is not None or is_subclassed(run.model):
        return
    # This is what "auto" allows for activations.
    budget, local = available // 2, run.batch // config.replicas
    segments = segments_of(run.model, budget, local)
    held = held_bytes(segments, local)
    is_divided = not all(segment.kept for segment in segments)
    if is_divided and held <= budget and need.fixed + BACKWARD * held <= available * USABLE:
        yield (
            'activation checkpointing (Strategy(activation_checkpointing="auto"), or '
            "--pipeline-splits auto 2 --device-mapping 0 0 --activation-checkpointing)"
        )


def _shards(need: MemoryNeed, limit: int, run: ObservedRun) -> Iterator[str]:
    config = run.config
    if config.replicas == 1 or config.pipeline is not None or config.shard == "weights":
        return
    # Weights are gathered once for each weight update only if they and their gradients take less
    # than the budget; otherwise, those of a few layers are held at a time.
    saved = need.state - need.state // config.replicas
    saved -= min(need.state, config.gather_budget) // 2
    text = 'sharded weights (--shard weights, Strategy(shard="weights"))'
    fitting = MemoryNeed(need.total - saved, need.state - saved, need.fixed - saved)
    if fitting.total <= limit:
        yield text
    elif need.fixed > limit:
        for smaller in _smaller_batch(fitting, limit, run):
            yield f"{text}, together with {smaller}"


def _stages(
    need: MemoryNeed, gradients: int, limit: int, devices: int, run: ObservedRun
) -> Iterator[str]:
    """Suggest stages if they divide a large state.

    They do not reduce the activations: the first stage holds those of as many micro-batches as
    there are stages.
    """
    replicas, is_pipeline = run.config.replicas, run.config.pipeline is not None
    now = max(stage_assignment(run.model) or [0]) + 1 if is_pipeline else 1
    divided = min(need.state + gradients, need.total)
    for stages in range(now + 1, min(devices, MAX_STAGES) + 1):
        if LARGEST_STAGE * (divided * now / stages + need.total - divided) <= limit:
            fewer = devices // stages
            flags = f" --num-replicas {fewer}" if fewer < replicas else ""
            yield (
                f"{stages} pipeline stages (--pipeline-splits auto {stages}{flags}, "
                f"convoy.split(model, {stages}))"
            )
            return
