"""Saving and restoring of the state of callbacks, such as the best value so far or the history."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from convoy import keras_bridge
from convoy.checkpoint.errors import CheckpointError
from convoy.types import Json

_ARRAYS = "arrays"
Callbacks = list[keras.callbacks.Callback]


def capture(callbacks: Callbacks) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Return the states of callbacks: values for JSON, and arrays by name.

    Callbacks with a state are Keras's own that monitor a metric, and all that have `get_state()`
    and `set_state(state)`.
    """
    states: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for callback in callbacks:
        state = _state_of(callback)
        if not state:
            continue
        values = {}
        for name, value in state.items():
            if _is_arrays(value):
                prefix = f"callbacks/{len(states)}/{name}"
                arrays |= {f"{prefix}/{i}": np.array(array) for i, array in enumerate(value)}
                values[name] = {_ARRAYS: prefix, "count": len(value)}
            else:
                values[name] = _plain(value)
        states.append({"type": type(callback).__name__, "state": values})
    return states, arrays


def restore(
    callbacks: Callbacks, states: list[dict[str, Any]], arrays: Mapping[str, np.ndarray]
) -> None:
    """Restore the states of callbacks; each callback gets the next state of its type.

    Raises:
        CheckpointError: if a callback does not accept its state.
    """
    remaining = list(states)
    for callback in callbacks:
        names = (type(callback).__name__, *getattr(callback, "earlier_names", ()))
        entry = next((one for one in remaining if one["type"] in names), None)
        if entry is None:
            continue
        remaining.remove(entry)
        try:
            _set_state(callback, entry["state"], arrays)
        except Exception as error:  # A user's `set_state` can raise anything.
            raise CheckpointError(
                f"The state of {names[0]} in the checkpoint cannot be restored: {error!r}. Pass "
                "the callback that wrote it, or another folder."
            ) from error


def _set_state(
    callback: keras.callbacks.Callback, saved: Json, arrays: Mapping[str, np.ndarray]
) -> None:
    state = {name: _with_arrays(value, arrays) for name, value in saved.items()}
    if keras_bridge.has_state(callback):
        callback.set_state(state)
        return
    known = keras_bridge.callback_state_names(callback)
    for name, value in state.items():
        if name not in known:
            raise ValueError(f"{name!r} is not an attribute with state")
        setattr(callback, name, value)


def _state_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    if keras_bridge.has_state(callback):
        return callback.get_state()
    names = keras_bridge.callback_state_names(callback)
    return {name: getattr(callback, name) for name in names if hasattr(callback, name)}


def _is_arrays(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], np.ndarray)


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict) and set(value) == {_ARRAYS, "count"}:
        return [arrays[f"{value[_ARRAYS]}/{i}"] for i in range(value["count"])]
    return value


def _plain(value: Any) -> Any:
    """Convert scalars of NumPy and JAX to Python's."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value
