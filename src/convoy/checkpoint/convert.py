"""Checkpoints to and from Keras's own files, and the mean of several."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.checkpoint import snapshot, store
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.store import Content

WEIGHTS = ("trainable", "non_trainable")


def to_model(content: Content) -> keras.Model:
    """Build the model of a checkpoint, with its weights, and its optimizer's state if it can.

    Keras's safe mode holds: a description with code in it is refused.

    Raises:
        CheckpointError: if the checkpoint has no description, or one that Keras cannot follow.
    """
    if content.model is None:
        raise CheckpointError(
            "The checkpoint has no description of its model: its class has no get_config(). Build "
            "the model in Python, and call fit() with a Checkpoints callback."
        )
    description = json.loads(content.model)
    try:
        try:
            model = keras.saving.deserialize_keras_object(description, safe_mode=True)
        except (TypeError, ValueError):
            # A loss or a metric that only the training script knows; the weights do without it.
            description.pop("compile_config", None)
            model = keras.saving.deserialize_keras_object(description, safe_mode=True)
    except Exception as error:  # whatever a layer makes of it
        first = str(error).strip().splitlines()[0]
        raise CheckpointError(f"The checkpoint's model cannot be built from it: {first}") from error
    give_weights(model, content)
    return model


def give_weights(model: keras.Model, content: Content) -> None:
    """Set a model's weights, and its optimizer's state if it has that of a checkpoint.

    Raises:
        CheckpointError: if they are those of another model.
    """
    if not model.built:
        raise CheckpointError(
            "The checkpoint's model does not know the shape of its input. Give it a keras.Input."
        )
    parts = {kind: getattr(model, f"{kind}_variables") for kind in WEIGHTS}
    if getattr(model, "optimizer", None) is not None:
        model.optimizer.build(model.trainable_variables)
        parts["optimizer"] = model.optimizer.variables
    for kind, variables in parts.items():
        arrays = _part(content, kind)
        shapes = [tuple(variable.shape) for variable in variables]
        if shapes == [array.shape for array in arrays]:
            keras_bridge.assign(variables, [jnp.array(array) for array in arrays])
        elif kind in WEIGHTS:
            raise CheckpointError(
                f"The checkpoint's {kind} variables have the shapes {[a.shape for a in arrays]}, "
                f"and the model's {shapes}. It is of another model."
            )


def from_model(model: keras.Model) -> Content:
    """Return a checkpoint of a model's weights, for a run to begin with."""
    arrays = {
        snapshot.name_of(kind, index, variable): np.array(variable.value)
        for kind in WEIGHTS
        for index, variable in enumerate(getattr(model, f"{kind}_variables"))
    }
    return Content(arrays, {"weights_only": True}, {}, snapshot.describe(model))


def average(contents: Sequence[Content]) -> Content:
    """Return the weights' mean over checkpoints of one model; what is not a float is the last's.

    Raises:
        CheckpointError: if they are of different models.
    """
    last = contents[-1]
    names = [name for name in last.arrays if name.split("/")[0] in WEIGHTS]
    arrays = {}
    for name in names:
        wanted = last.arrays[name]
        found = [content.arrays.get(name) for content in contents]
        if any(one is None or one.shape != wanted.shape for one in found):
            raise CheckpointError(
                f"The checkpoints are of different models: not all have {name!r} of shape "
                f"{list(wanted.shape)}."
            )
        arrays[name] = _mean([one for one in found if one is not None])
    return Content(arrays, {"weights_only": True}, {"mean of": len(contents)}, last.model)


def write(content: Content, target: Path, model: Path | None = None) -> None:
    """Write weights to a `.keras` or `.weights.h5` file, or to a folder as a checkpoint.

    Args:
        content: a checkpoint.
        target: what to write; it must not be there yet.
        model: where the model's description is, if not in the checkpoint: a `.keras` file.

    Raises:
        CheckpointError: if it is there, or cannot be written.
    """
    if target.exists():
        raise CheckpointError(f"{target} is there already. Pass another name, or remove it.")
    if not (target.name.endswith(".weights.h5") or target.suffix == ".keras"):
        target.parent.mkdir(parents=True, exist_ok=True)
        store.write(target, content)
        return
    if model is None:
        built = to_model(content)
    else:
        built = keras.models.load_model(model)
        give_weights(built, content)
    built.save(target) if target.suffix == ".keras" else built.save_weights(target)


def read(source: Path, model: Path | None = None) -> Content:
    """Read a `.keras` or `.weights.h5` file as a checkpoint.

    Raises:
        CheckpointError: if the weights' model is not known.
    """
    if source.suffix == ".keras":
        return from_model(keras.models.load_model(source))
    if model is None:
        raise CheckpointError(
            f"{source} has weights only. Pass --model with a .keras file of the same model."
        )
    built = keras.models.load_model(model)
    built.load_weights(source)
    return from_model(built)


def is_keras_file(path: Path) -> bool:
    return path.suffix == ".keras" or path.name.endswith(".weights.h5")


def _part(content: Content, kind: str) -> list[np.ndarray]:
    return [array for name, array in content.arrays.items() if name.split("/")[0] == kind]


def _mean(arrays: list[np.ndarray]) -> np.ndarray:
    if not jnp.issubdtype(arrays[-1].dtype, jnp.floating):
        return arrays[-1]
    total = sum((array.astype(np.float64) for array in arrays), np.zeros(arrays[0].shape))
    return (total / len(arrays)).astype(arrays[-1].dtype)
