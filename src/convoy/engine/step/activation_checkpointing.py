"""Activations that are computed again in the backward pass instead of being kept.

A functional model is cut into runs of consecutive calls. What a run computes is not kept, only what
goes into it; its backward pass computes it once more.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from convoy.engine.state import Arrays, State
from convoy.engine.step.step import GradientStep, Logs, Position
from convoy.keras_bridge import (
    GraphCall,
    get_keras_mask,
    graph_calls,
    graph_outputs,
    is_subclassed,
    replaced_graph_run,
    set_keras_mask,
)

Remat = int | Sequence[str] | None
Wrap = Callable[[Any], Callable[..., Any]]
Tensors = dict[int, Any]


class Run(NamedTuple):
    """Consecutive calls, and whether what they compute is kept for the backward pass."""

    calls: list[GraphCall]
    kept: bool


def runs_of(model: keras.Model, activation_checkpointing: Remat, samples: int) -> list[Run]:
    """Cut a model's calls into runs.

    Args:
        model: a functional or sequential model.
        activation_checkpointing: patterns of layer names whose activations are not kept, or the
            number of bytes that activations may take.
        samples: in a micro-batch.

    Raises:
        ValueError: if the model has no graph, or a pattern fits none of its layers.
    """
    if activation_checkpointing is None:
        return []
    calls = None if is_subclassed(model) else graph_calls(model)
    if calls is None:
        raise ValueError(
            f"activation_checkpointing was asked for, but {model.name!r} is a "
            "subclassed model, without a graph to cut. Make it functional, or use "
            "keras.remat inside of its call()."
        )
    if isinstance(activation_checkpointing, int):
        return _by_memory(calls, activation_checkpointing, samples)
    return _by_name(
        model,
        calls,
        [activation_checkpointing]
        if isinstance(activation_checkpointing, str)
        else activation_checkpointing,
    )


def rematerialise(step: GradientStep, model: keras.Model, runs: list[Run]) -> GradientStep:
    """Have a step's model forget what its runs do not keep."""
    if all(run.kept for run in runs):
        return step
    after = _needed_after(runs, graph_outputs(model))

    def run_all(tensors: Tensors, wrap: Wrap) -> None:
        for run, needed in zip(runs, after, strict=True):
            if run.kept:
                for call in run.calls:
                    call.run(tensors, wrap)
            else:
                _run_forgetting(model, run.calls, needed, tensors, wrap)

    def rematerialised(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        with replaced_graph_run(model, run_all):
            return step(state, position)

    return rematerialised


def _run_forgetting(
    model: keras.Model, calls: list[GraphCall], needed: set[int], tensors: Tensors, wrap: Wrap
) -> None:
    """Run calls as one pure function, so that JAX can run it again in the backward pass."""
    made = {output for call in calls for output in call.outputs}
    inputs = {i: tensors[i] for call in calls for i in call.inputs if i in tensors}
    masks = {i: get_keras_mask(tensor) for i, tensor in inputs.items()}
    variables = list({id(v): v for call in calls for v in call.variables}.values())

    def compute(values: list[jax.Array], inputs: Tensors, masks: Tensors) -> Any:
        local = dict(inputs)
        for i, mask in masks.items():
            if mask is not None:
                set_keras_mask(local[i], mask)
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            for call in calls:
                call.run(local, wrap)
        outputs = {i: local[i] for i in needed & made}
        out_masks = {i: get_keras_mask(tensor) for i, tensor in outputs.items()}
        return outputs, out_masks, [scope.get_current_value(v) for v in variables], scope.losses

    before = [jnp.asarray(variable.value) for variable in variables]
    outputs, out_masks, after, losses = jax.checkpoint(compute)(before, inputs, masks)
    for i, mask in out_masks.items():
        if mask is not None:
            set_keras_mask(outputs[i], mask)
    tensors.update(outputs)
    for variable, value in zip(variables, after, strict=True):
        if not variable.trainable:
            variable.assign(value)
    for loss in losses:
        model.add_loss(loss)


def _needed_after(runs: list[Run], outputs: list[int]) -> list[set[int]]:
    """Return for every run what is read after it."""
    needed = set(outputs)
    after = []
    for run in reversed(runs):
        after.append(set(needed))
        needed |= {i for call in run.calls for i in call.inputs}
    return after[::-1]


def _by_name(model: keras.Model, calls: list[GraphCall], patterns: Sequence[str]) -> list[Run]:
    names = list(dict.fromkeys(call.name for call in calls))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, 3) or names[:3]
            raise ValueError(
                f"activation_checkpointing: {pattern!r} is not the name of a layer of "
                f"{model.name!r}, nor a pattern of one. Did you mean {' or '.join(near)}?"
            )
    runs: list[Run] = []
    for call in calls:
        kept = not any(fnmatchcase(call.name, pattern) for pattern in patterns)
        if not runs or runs[-1].kept != kept:
            runs.append(Run([], kept))
        runs[-1].calls.append(call)
    return runs


def _by_memory(calls: list[GraphCall], budget: int, samples: int) -> list[Run]:
    """Forget as little as fits into the budget: find the smallest number of runs that does."""
    sizes = [_bytes(call, samples) for call in calls]
    if sum(sizes) <= budget:
        return [Run(calls, kept=True)]
    borders = _borders(calls)
    best: tuple[int, list[list[int]]] | None = None
    for count in range(2, len(borders) + 2):
        parts = _divide(sizes, borders, count)
        held = sum(sizes[part[-1]] for part in parts[:-1])
        need = held + max(sum(sizes[i] for i in part) for part in parts)
        if best is None or need < best[0]:
            best = need, parts
        if need <= budget:
            break
    parts = best[1] if best else [list(range(len(calls)))]
    # What the last run computes is read at once: it is the first to go backwards.
    return [
        Run([calls[i] for i in part], kept=number == len(parts) - 1)
        for number, part in enumerate(parts)
    ]


def _borders(calls: list[GraphCall]) -> list[int]:
    """Return the calls after which only what they computed themselves is still read."""
    last_use = {i: position for position, call in enumerate(calls) for i in call.inputs}
    live: set[int] = set()
    borders = []
    for position, call in enumerate(calls[:-1]):
        live = {i for i in live | set(call.outputs) if last_use.get(i, -1) > position}
        if live <= set(call.outputs):
            borders.append(position)
    return borders


def _divide(sizes: list[int], borders: list[int], count: int) -> list[list[int]]:
    """Cut at borders into about `count` parts of about the same size."""
    target = sum(sizes) / count
    parts: list[list[int]] = [[]]
    filled = 0
    for position, size in enumerate(sizes):
        parts[-1].append(position)
        filled += size
        if position in borders and filled >= target and position < len(sizes) - 1:
            parts.append([])
            filled = 0
    return parts


def _bytes(call: GraphCall, samples: int) -> int:
    return sum(
        samples * prod(size or 1 for size in shape[1:]) * jnp.dtype(dtype).itemsize
        for shape, dtype in call.output_shapes
    )
