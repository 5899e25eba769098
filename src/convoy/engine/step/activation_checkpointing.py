"""Activation checkpointing: activations are recomputed in the backward pass.

A functional model is divided into segments of consecutive calls. For a checkpointed segment, only
the inputs are stored; the backward pass recomputes its activations.

    kept           o----o----o----o----o         checkpointed       o---------|---------o
    forward        a1   a2   a3   a4   loss                         a1   (a2   a3)   a4   loss
    backward       g1 < g2 < g3 < g4 <                              g1 < a2 > a3 > g3 < g4 <
"""

import difflib
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
import keras
from convoy.engine.state import State
from convoy.engine.step.step import GradientStep, Position
from convoy.keras_bridge import (
    GraphCall,
    get_keras_mask,
    graph_calls,
    graph_outputs,
    is_subclassed,
    replaced_graph_run,
    set_keras_mask,
)
from convoy.types import Arrays, Logs, PyTree, Tensors

Wrap = Callable[[keras.Operation], Callable[..., PyTree]]


class Segment(NamedTuple):
    """Consecutive calls, and whether their activations are kept for the backward pass."""

    calls: list[GraphCall]
    kept: bool


def segments_of(
    model: keras.Model,
    activation_checkpointing: int | Sequence[str] | None,
    samples: int,
) -> list[Segment]:
    """Divide the calls of a model into segments.

    Args:
        model: a functional or sequential model.
        activation_checkpointing: patterns of the names of layers whose activations are not stored,
            or the maximum bytes of activations.
        samples: samples in a local batch.

    Raises:
        ValueError: if the model has no graph, or a pattern matches none of its layers.
    """
    if activation_checkpointing is None:
        return []
    calls = None if is_subclassed(model) else graph_calls(model)
    if calls is None:
        raise ValueError(
            f"activation_checkpointing was passed, but {model.name!r} is a subclassed model, which "
            "has no graph of layers. Make it functional, or use keras.remat in its call()."
        )
    if isinstance(activation_checkpointing, int):
        return _by_memory(calls, activation_checkpointing, samples)
    return _by_name(model, calls, activation_checkpointing)


def held_bytes(segments: Sequence[Segment], samples: int) -> int:
    """Return the bytes that a backward pass holds: inputs of segments, and activations of one.

    Args:
        segments: the segments of a model.
        samples: samples in a local batch.
    """
    sizes = [[_bytes(call, samples) for call in segment.calls] for segment in segments]
    return sum(own[-1] for own in sizes[:-1]) + max(map(sum, sizes))


def checkpoint_activations(
    step: GradientStep, model: keras.Model, segments: list[Segment]
) -> GradientStep:
    """Make a step recompute the activations of checkpointed segments."""
    if all(segment.kept for segment in segments):
        return step
    after = _needed_after(segments, graph_outputs(model))

    def run_all(tensors: Tensors, wrap: Wrap) -> None:
        for segment, needed in zip(segments, after, strict=True):
            if segment.kept:
                for call in segment.calls:
                    call.run(tensors, wrap)
            else:
                _run_checkpointed(model, segment.calls, needed, tensors, wrap)

    def checkpointing_step(state: State, position: Position) -> tuple[State, Arrays, Logs]:
        with replaced_graph_run(model, run_all):
            return step(state, position)

    return checkpointing_step


def _run_checkpointed(
    model: keras.Model, calls: list[GraphCall], needed: set[int], tensors: Tensors, wrap: Wrap
) -> None:
    """Run calls as one pure function, which JAX can run again in the backward pass.

    Side effects of layers (masks, variables, losses) are passed as arguments and results of that
    function.
    """
    made = {output for call in calls for output in call.outputs}
    inputs = {i: tensors[i] for call in calls for i in call.inputs if i in tensors}
    masks = {i: get_keras_mask(tensor) for i, tensor in inputs.items()}
    variables = list({id(v): v for call in calls for v in call.variables}.values())

    def compute(values: Arrays, inputs: Tensors, masks: dict[int, jax.Array | None]) -> PyTree:
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


def _needed_after(segments: list[Segment], outputs: list[int]) -> list[set[int]]:
    """Return for every segment the tensors that are read after it."""
    needed = set(outputs)
    after = []
    for segment in reversed(segments):
        after.append(set(needed))
        needed |= {i for call in segment.calls for i in call.inputs}
    return after[::-1]


def _by_name(model: keras.Model, calls: list[GraphCall], patterns: Sequence[str]) -> list[Segment]:
    names = list(dict.fromkeys(call.name for call in calls))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = difflib.get_close_matches(pattern, names, 3) or names[:3]
            raise ValueError(
                f"activation_checkpointing: {pattern!r} is not the name of a layer of "
                f"{model.name!r}, nor a pattern of one. Did you mean {' or '.join(near)}?"
            )
    segments: list[Segment] = []
    for call in calls:
        kept = not any(fnmatchcase(call.name, pattern) for pattern in patterns)
        if not segments or segments[-1].kept != kept:
            segments.append(Segment([], kept))
        segments[-1].calls.append(call)
    return segments


def _by_memory(calls: list[GraphCall], budget: int, samples: int) -> list[Segment]:
    """Find the smallest number of segments whose activations fit into the budget.

    The backward pass holds the inputs of all segments, and the activations of one of them.
    """
    sizes = [_bytes(call, samples) for call in calls]
    if sum(sizes) <= budget:
        return [Segment(calls, kept=True)]
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
    # The backward pass reads the activations of the last segment immediately, so these are stored.
    return [
        Segment([calls[i] for i in part], kept=number == len(parts) - 1)
        for number, part in enumerate(parts)
    ]


def _borders(calls: list[GraphCall]) -> list[int]:
    """Return the calls after which only their own outputs are still read."""
    last_use = {i: position for position, call in enumerate(calls) for i in call.inputs}
    live: set[int] = set()
    borders = []
    for position, call in enumerate(calls[:-1]):
        live = {i for i in live | set(call.outputs) if last_use.get(i, -1) > position}
        if live <= set(call.outputs):
            borders.append(position)
    return borders


def _divide(sizes: list[int], borders: list[int], count: int) -> list[list[int]]:
    """Divide at borders into about `count` parts of about the same size."""
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
