"""Division of one optimizer into optimizers for groups of weights, as pipeline stages need.

An optimizer names its variables (slots) after the weights, and Keras stores no other relation
between the two. Weights therefore get unique names while a copy is built:

    weight            slots of the whole        slots of the copy for the second group
    #0_kernel         #0_kernel_momentum
    #1_kernel         #1_kernel_momentum   <->  #1_kernel_momentum
"""

import re
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras
from convoy import context
from convoy.keras_bridge.variables import Variables, updated_variables

# The prefix that `_numbered` gives to the name of a weight, and so to those of its slots.
_NUMBERED = re.compile(r"#\d+_")


def split_optimizer(
    optimizer: keras.optimizers.Optimizer, groups: list[Variables], **changes: Any
) -> list[tuple[keras.optimizers.Optimizer, list[int]]]:
    """Split an optimizer into optimizers of the same kind, one for each group of weights.

    Args:
        optimizer: built optimizer of all weights.
        groups: weights of each group.
        **changes: settings of the configuration to replace.

    Returns:
        For each group an optimizer, whose variables hold no values, and the indices of its
        variables among those of `optimizer`. The indices are empty for a group without weights,
        because Keras does not count an update without weights.
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
    """Return a key for each variable: the slot's name, and its number among equal names.

    Some optimizers give several slots of a weight the same name. Variables that belong to no
    weight, such as the iteration counter, are identified by their order.
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
        # A constant learning rate is a variable, whose value is passed in with every update.
        is_variable = isinstance(rate, keras.Variable)
        serialize = keras.optimizers.schedules.serialize
        config["learning_rate"] = 0.0 if is_variable else serialize(rate)
    copy = type(optimizer).from_config(config)
    _exclude_alike(optimizer, copy)
    with _numbered(variables, numbers):
        jax.eval_shape(lambda: copy.build(variables))  # which leaves out the values
    # The original optimizer's slots hold the values, which are passed in with every update.
    for variable in copy.variables:
        variable._value = None
    return copy


def _exclude_alike(optimizer: keras.optimizers.Optimizer, copy: keras.optimizers.Optimizer) -> None:
    """Copy the weights excluded from weight decay, which are missing from the configuration."""
    for name in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"):
        if hasattr(optimizer, name):
            setattr(copy, name, getattr(optimizer, name))
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, keras.optimizers.Optimizer):
        _exclude_alike(inner, copy.optimizer)


def _numbered(variables: Variables, numbers: dict[int, int]) -> AbstractContextManager[None]:
    """Prefix the names of weights with unique numbers; nested models repeat names."""
    # Path and name have no setters, and the optimizer reads both to name its slots.
    numbered = [(variable, numbers[id(variable)]) for variable in variables]
    paths = [(variable, "_path", f"#{number}/{variable._path}") for variable, number in numbered]
    names = [(variable, "_name", f"#{number}_{variable._name}") for variable, number in numbered]
    return context.changed(paths + names)
