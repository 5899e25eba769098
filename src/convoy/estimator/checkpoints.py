"""Checkpoints of estimators: weights, optimizer state and the global step."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.checkpoint import CheckpointError
from convoy.checkpoint.folder import Folder, Position, find_checkpoint
from convoy.checkpoint.snapshot import name_of
from convoy.checkpoint.store import Checkpoint
from convoy.engine.observer import pause
from convoy.engine.state import Variables

_WEIGHTS = ("trainable", "non_trainable")
_STATE = ("optimizer", "numerics")


@dataclass(frozen=True)
class WarmStart:
    """Source of the initial weights of a new network.

    Attributes:
        path: a checkpoint, or a folder of checkpoints, whose newest one is used.
        variables: a regular expression. Only variables whose path matches it are restored; by
            default all are, and must be equal in number and shape.
    """

    path: str | Path
    variables: str | None = None


def newest(folder: Folder) -> Checkpoint | None:
    """Read the newest intact checkpoint of a folder, if there is one."""
    found = folder.newest()
    return None if found is None else found[1]


def write(
    folder: Folder, keep: int, model: keras.Model, global_step: int, logs: dict[str, float]
) -> None:
    """Add a checkpoint to a folder, and keep only the newest ones."""
    with pause("checkpoint"):
        folder.write(Position(0, global_step), _content(model, global_step, logs))
        folder.keep_only(folder.positions()[-keep:])


def read(path: str | Path) -> Checkpoint:
    """Read a checkpoint, or the newest one in a folder.

    Raises:
        CheckpointError: if there is none.
    """
    found = find_checkpoint(Path(path))
    if found is None:
        raise CheckpointError(f"There are no checkpoints in {path}. Pass another path.")
    return found[1]


def global_step(content: Checkpoint) -> int:
    """Return the number of steps for which the network of a checkpoint was trained.

    Raises:
        CheckpointError: if no estimator wrote it.
    """
    if "global_step" not in content.state:
        raise CheckpointError("No estimator wrote this checkpoint. Pass it as warm_start_from.")
    return int(content.state["global_step"])


def restore(model: keras.Model, content: Checkpoint, *, training: bool) -> None:
    """Restore the weights of a model; for training, also the optimizer and random state.

    Raises:
        CheckpointError: if the checkpoint is that of another model.
    """
    for kind in (*_WEIGHTS, *_STATE) if training else _WEIGHTS:
        variables, arrays = _saved_variables(model, content, kind, training=training)
        _assign(variables, list(arrays.values()), kind)


def warm_start(model: keras.Model, source: WarmStart) -> None:
    """Initialise a model with the weights of another checkpoint.

    Raises:
        CheckpointError: if they do not fit, or the expression matches none of them.
    """
    content = read(source.path)
    pattern = source.variables
    if pattern is None:
        restore(model, content, training=False)
        return
    restored = 0
    for kind in _WEIGHTS:
        variables, arrays = _saved_variables(model, content, kind, training=False)
        for variable, (name, array) in zip(variables, arrays.items(), strict=False):
            if re.search(pattern, variable.path) or re.search(pattern, name):
                _assign([variable], [array], kind)
                restored += 1
    if not restored:
        raise CheckpointError(
            f"warm_start_from: no variable has {pattern!r} in its path. The paths are "
            f"{', '.join(v.path for v in _variables(model, 'trainable'))}."
        )


def _content(model: keras.Model, step: int, logs: dict[str, float]) -> Checkpoint:
    arrays = {
        name_of(kind, index, variable): np.asarray(variable.value)
        for kind in (*_WEIGHTS, *_STATE)
        for index, variable in enumerate(_variables(model, kind))
    }
    state = {"global_step": step, "epoch": 0, "step": step, "total": step, "logs": logs}
    about = {"written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    return Checkpoint(arrays, state, about)


def _variables(model: keras.Model, kind: str) -> list[keras.Variable]:
    if kind == "optimizer" and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return list(getattr(Variables(model, "train").parts, kind))


def _saved_variables(
    model: keras.Model, content: Checkpoint, kind: str, *, training: bool
) -> tuple[list[keras.Variable], dict[str, np.ndarray]]:
    """Return the variables of one kind to restore, and the arrays for them, by name."""

    def is_restored(path: str) -> bool:
        name = path.rsplit("/", 1)[-1]
        if kind == "optimizer":  # training continues with the learning rate that is set now
            return name != "learning_rate"
        return training or not name.startswith("seed_generator_state")

    arrays = {
        name: array
        for name, array in content.arrays.items()
        if name.split("/")[0] == kind and is_restored(name)
    }
    return [v for v in _variables(model, kind) if is_restored(v.path)], arrays


def _assign(variables: list[keras.Variable], arrays: list[np.ndarray], kind: str) -> None:
    difference = ""
    if len(arrays) != len(variables):
        difference = f"{len(arrays)} {kind} variables instead of {len(variables)}"
    else:
        for variable, array in zip(variables, arrays, strict=True):
            if array.shape != variable.shape and not difference:
                difference = f"the shape {array.shape} for {variable.path}, not {variable.shape}"
    if difference:
        raise CheckpointError(
            f"The checkpoint has {difference}. It is of another network: pass another model_dir."
        )
    keras_bridge.assign(variables, [jnp.array(array) for array in arrays])
