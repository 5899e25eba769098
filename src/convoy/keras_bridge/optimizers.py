"""Optimizers for parts of a model's weights."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import keras
from convoy.keras_bridge.variables import Variables, updated_variables

# What `_numbered` puts before the name of a weight, and so before those of its slots.
_NUMBERED = re.compile(r"#\d+_")


def divided_optimizer(
    optimizer: keras.optimizers.Optimizer, groups: list[Variables], **changes: Any
) -> list[tuple[keras.optimizers.Optimizer, list[int]]]:
    """Return optimizers of the same kind for groups of weights; their variables hold no values.

    Returns:
        Each optimizer, and the places of its variables among those of the given one; none for a
        group without weights, which Keras does not count as an update.
    """
    everything = updated_variables(optimizer)
    numbers = {id(variable): number for number, variable in enumerate(everything)}
    whole = _built_copy(optimizer, everything, numbers, changes)
    places = {key: place for place, key in enumerate(_keys(whole))}
    copies = [_built_copy(optimizer, group, numbers, changes) for group in groups]
    return [
        (copy, [places[key] for key in _keys(copy)] if group else [])
        for copy, group in zip(copies, groups, strict=True)
    ]


def _keys(optimizer: keras.optimizers.Optimizer) -> list[tuple[str, int]]:
    """Return what each variable is known by: its weight's name, and how many had it before.

    Not every optimizer names its slots apart. What belongs to no weight is known by its order.
    """
    seen: Counter[str] = Counter()
    keys = []
    for variable in optimizer.variables:
        name = variable.name if _NUMBERED.match(variable.name) else ""
        keys.append((name, seen[name]))
        seen[name] += 1
    return keys


def _built_copy(
    optimizer: keras.optimizers.Optimizer,
    variables: Variables,
    numbers: dict[int, int],
    changes: dict[str, Any],
) -> keras.optimizers.Optimizer:
    config = optimizer.get_config()
    if not isinstance(getattr(optimizer, "optimizer", None), keras.optimizers.Optimizer):
        config |= changes
        rate = optimizer._learning_rate
        # The value of a variable is handed in with every update.
        is_variable = isinstance(rate, keras.Variable)
        serialize = keras.optimizers.schedules.serialize
        config["learning_rate"] = 0.0 if is_variable else serialize(rate)
    copy = type(optimizer).from_config(config)
    _exclude_alike(optimizer, copy)
    with _numbered(variables, numbers):
        jax.eval_shape(lambda: copy.build(variables))  # which leaves out the values
    for variable in copy.variables:
        variable._value = None
    return copy


def _exclude_alike(optimizer: keras.optimizers.Optimizer, copy: keras.optimizers.Optimizer) -> None:
    """Keep the same weights from decay: what an optimizer was told of that is in no config."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(copy, name, getattr(optimizer, name))
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, keras.optimizers.Optimizer):
        _exclude_alike(inner, copy.optimizer)


@contextlib.contextmanager
def _numbered(variables: Variables, numbers: dict[int, int]) -> Iterator[None]:
    """Put numbers before names: slots are named after weights, and nested models repeat them."""
    before = [(variable._path, variable._name) for variable in variables]
    try:
        for variable, (path, name) in zip(variables, before, strict=True):
            number = numbers[id(variable)]
            variable._path, variable._name = f"#{number}/{path}", f"#{number}_{name}"
        yield
    finally:
        for variable, (path, name) in zip(variables, before, strict=True):
            variable._path, variable._name = path, name
