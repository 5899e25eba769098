"""Conversion between checkpoints and Keras's files, and averaging of checkpoints."""

import json
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.checkpoint import snapshot, store
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.folder import find_checkpoint
from convoy.checkpoint.store import Checkpoint
from convoy.error_messages import first_line
from convoy.types import Json

WEIGHTS = ("trainable", "non_trainable")


def to_model(checkpoint: Checkpoint) -> keras.Model:
    """Build the model of a checkpoint, with its weights, and if possible its optimizer's state.

    Keras's safe mode is on: a configuration that contains code is refused.

    Raises:
        CheckpointError: if the checkpoint has no configuration, or Keras cannot load it.
    """
    if checkpoint.model is None:
        raise CheckpointError(
            "The checkpoint has no configuration of its model: its class has no get_config(). "
            "Build the model in Python, and call fit() with a Checkpoints callback."
        )
    try:
        try:
            model = _deserialize(json.loads(checkpoint.model))
        except (TypeError, ValueError):
            # Only the training script knows a loss, a metric or a learning-rate schedule; the
            # weights do not need them. Keras empties a configuration while it reads it.
            model = _deserialize(json.loads(checkpoint.model) | {"compile_config": None})
    except Exception as error:  # Layers can raise anything.
        reason = first_line(error)
        raise CheckpointError(
            f"The checkpoint's model cannot be built: {reason.rstrip('.')}. Build the model in "
            "Python, and call fit() with a Checkpoints callback."
        ) from error
    assign_weights(model, checkpoint)
    return model


def _deserialize(configuration: Json) -> keras.Model:
    return keras.saving.deserialize_keras_object(configuration, safe_mode=True)


def load_model(path: Path) -> keras.Model:
    """Load the model of a `.keras` file, a checkpoint, or the newest checkpoint of a folder.

    Raises:
        CheckpointError: if the path is none of these.
    """
    if path.suffix == ".keras":
        return keras.models.load_model(path, compile=False)
    found = find_checkpoint(path)
    if found is None:
        raise CheckpointError(
            f"{path} has no model. Pass a .keras or .weights.h5 file, or a checkpoint's folder."
        )
    return to_model(found[1])


def assign_weights(model: keras.Model, checkpoint: Checkpoint) -> None:
    """Assign a checkpoint's weights to a model, and the optimizer's state if it fits.

    Raises:
        CheckpointError: if the weights are of another model.
    """
    if not model.built:
        raise CheckpointError(
            "The checkpoint's model has no input shape. Begin the model with a keras.Input."
        )
    parts = {kind: getattr(model, f"{kind}_variables") for kind in WEIGHTS}
    if getattr(model, "optimizer", None) is not None:
        model.optimizer.build(model.trainable_variables)
        parts["optimizer"] = model.optimizer.variables
    for kind, variables in parts.items():
        arrays = _part(checkpoint, kind)
        shapes = [tuple(variable.shape) for variable in variables]
        if shapes == [array.shape for array in arrays]:
            keras_bridge.assign(variables, [jnp.array(array) for array in arrays])
        elif kind in WEIGHTS:
            raise CheckpointError(
                f"The checkpoint's {kind} variables have the shapes {[a.shape for a in arrays]}, "
                f"but the model's have {shapes}. Pass a checkpoint of this model."
            )


def from_model(model: keras.Model) -> Checkpoint:
    """Return a checkpoint of a model's weights, from which a new run can begin."""
    arrays = {
        snapshot.name_of(kind, index, variable): np.array(variable.value)
        for kind in WEIGHTS
        for index, variable in enumerate(getattr(model, f"{kind}_variables"))
    }
    return Checkpoint(arrays, {"weights_only": True}, {}, snapshot.describe(model))


def average(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """Return the average of the weights of several checkpoints of one model.

    Arrays that are not floating-point are those of the last checkpoint.

    Raises:
        CheckpointError: if they are of different models.
    """
    last = checkpoints[-1]
    names = [name for name in last.arrays if name.split("/")[0] in WEIGHTS]
    arrays = {}
    for name in names:
        wanted = last.arrays[name]
        found = [checkpoint.arrays.get(name) for checkpoint in checkpoints]
        if any(one is None or one.shape != wanted.shape for one in found):
            raise CheckpointError(
                f"The checkpoints are of different models: not all have {name!r} of shape "
                f"{list(wanted.shape)}. Pass checkpoints of one model."
            )
        arrays[name] = _average([one for one in found if one is not None])
    return Checkpoint(arrays, {"weights_only": True}, {"mean of": len(checkpoints)}, last.model)


def write(checkpoint: Checkpoint, target: Path, model: Path | None = None) -> None:
    """Write weights to a `.keras` or `.weights.h5` file, or to a folder as a checkpoint.

    Args:
        checkpoint: the checkpoint.
        target: the file or folder, which must not exist.
        model: a `.keras` file with the model's configuration, if the checkpoint has none.

    Raises:
        CheckpointError: if the target exists, or cannot be written.
    """
    if target.exists():
        raise CheckpointError(f"{target} already exists. Pass another name, or remove it.")
    if not is_keras_file(target):
        store.write(target, checkpoint)
        return
    if model is None:
        built = to_model(checkpoint)
    else:
        built = keras.models.load_model(model)
        assign_weights(built, checkpoint)
    built.save(target) if target.suffix == ".keras" else built.save_weights(target)


def read(source: Path, model: Path | None = None) -> Checkpoint:
    """Read a `.keras` or `.weights.h5` file as a checkpoint.

    Args:
        source: the file.
        model: a `.keras` file of the same model, for a `.weights.h5` file.

    Raises:
        CheckpointError: if the model of the weights is unknown.
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


def _part(checkpoint: Checkpoint, kind: str) -> list[np.ndarray]:
    return [array for name, array in checkpoint.arrays.items() if name.split("/")[0] == kind]


def _average(arrays: list[np.ndarray]) -> np.ndarray:
    if not jnp.issubdtype(arrays[-1].dtype, jnp.floating):
        return arrays[-1]
    total = sum((array.astype(np.float64) for array in arrays), np.zeros(arrays[0].shape))
    return (total / len(arrays)).astype(arrays[-1].dtype)
