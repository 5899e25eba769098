"""The checkpoints of an estimator: weights, optimizer, and how many steps they were trained."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge
from convoy.checkpoint import CheckpointError, store
from convoy.checkpoint.folder import Folder, Position
from convoy.checkpoint.snapshot import name_of
from convoy.checkpoint.store import Checkpoint
from convoy.engine.observer import pause
from convoy.engine.prepared_model import PreparedModel

_WEIGHTS = ("trainable", "non_trainable")
_SEED = "seed_generator_state"


@dataclass(frozen=True)
class WarmStart:
    """Where the weights of a new network come from.

    Attributes:
        path: a checkpoint, or a folder of checkpoints, of which the newest is taken.
        variables: a regular expression. Only variables whose path it is found in are taken;
            by default all, which must then be the same in number and shape.
    """

    path: str | Path
    variables: str | None = None


class Saved:
    """The checkpoints in an estimator's folder."""

    def __init__(self, path: Path, keep: int) -> None:
        self.folder = Folder(path)
        self.keep = keep

    def newest(self) -> tuple[Path, Checkpoint] | None:
        """Read the newest checkpoint that is whole, if there is one."""
        found = self.folder.newest()
        return None if found is None else (self.folder.at(found[0]), found[1])

    def write(self, model: keras.Model, global_step: int, logs: dict[str, float]) -> Path:
        """Add a checkpoint, and remove old ones."""
        position = Position(0, global_step)
        with pause("checkpoint"):
            self.folder.write(position, _content(model, global_step, logs))
            self.folder.keep_only(self.folder.positions()[-self.keep :])
        return self.folder.at(position)


def read(path: str | Path) -> Checkpoint:
    """Read a checkpoint, or the newest in a folder.

    Raises:
        CheckpointError: if there is none.
    """
    path = Path(path)
    if Position.parse(path.name) is not None:
        return store.read(path)
    found = Folder(path).newest()
    if found is None:
        raise CheckpointError(f"There are no checkpoints in {path}. Pass another path.")
    return found[1]


def global_step(content: Checkpoint) -> int:
    """Return how many steps a checkpoint's network was trained.

    Raises:
        CheckpointError: if an estimator did not write it.
    """
    if "global_step" not in content.state:
        raise CheckpointError(
            "The checkpoint was not written by an estimator. Pass another model_dir, or take its "
            "weights by warm_start_from."
        )
    return int(content.state["global_step"])


def restore(model: keras.Model, content: Checkpoint, *, training: bool) -> None:
    """Give a model the weights of a checkpoint; to train on, its optimizer's state too.

    Raises:
        CheckpointError: if they are those of another model.
    """
    for kind in _WEIGHTS:
        variables = [v for v in _variables(model, kind) if not _is_seed(v.path)]
        arrays = [a for name, a in _arrays(content, kind) if not _is_seed(name)]
        _assign(variables, arrays, kind)
    if not training:
        return
    seeds = [v for v in _variables(model, "non_trainable") if _is_seed(v.path)]
    states = [a for name, a in _arrays(content, "non_trainable") if _is_seed(name)]
    _assign(seeds, states, "random")
    for kind in ("optimizer", "numerics"):
        # The rate that training goes on with is the one that the model function says now.
        variables = [v for v in _variables(model, kind) if not _is_rate(v.path)]
        arrays = [a for name, a in _arrays(content, kind) if not _is_rate(name)]
        _assign(variables, arrays, kind)


def warm_start(model: keras.Model, source: WarmStart) -> None:
    """Give a model weights of another checkpoint.

    Raises:
        CheckpointError: if they do not fit, or the expression is found in none of them.
    """
    content = read(source.path)
    if source.variables is None:
        restore(model, content, training=False)
        return
    taken = 0
    for kind in _WEIGHTS:
        own = [v for v in _variables(model, kind) if not _is_seed(v.path)]
        arrays = [(n, a) for n, a in _arrays(content, kind) if not _is_seed(n)]
        for variable, (name, array) in zip(own, arrays, strict=False):
            if re.search(source.variables, variable.path) or re.search(source.variables, name):
                _assign([variable], [array], kind)
                taken += 1
    if not taken:
        raise CheckpointError(
            f"warm_start_from: {source.variables!r} is found in the path of no variable. These "
            f"are {', '.join(v.path for v in _variables(model, 'trainable'))}."
        )


def _content(model: keras.Model, step: int, logs: dict[str, float]) -> Checkpoint:
    arrays = {
        name_of(kind, index, variable): np.asarray(variable.value)
        for kind in (*_WEIGHTS, "optimizer", "numerics")
        for index, variable in enumerate(_variables(model, kind))
    }
    state = {"global_step": step, "epoch": 0, "step": step, "total": step, "logs": logs}
    about = {"written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    return Checkpoint(arrays, state, about)


def _variables(model: keras.Model, kind: str) -> list[Any]:
    if kind == "optimizer":
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        return list(model.optimizer.variables)
    if kind == "numerics":
        return list(PreparedModel.of(model).numerics.variables)
    return list(getattr(model, f"{kind}_variables"))


def _arrays(content: Checkpoint, kind: str) -> Iterator[tuple[str, np.ndarray]]:
    for name, array in content.arrays.items():
        if name.split("/")[0] == kind:
            yield name, array


def _is_seed(path: str) -> bool:
    return path.rsplit("/", 1)[-1].startswith(_SEED)


def _is_rate(path: str) -> bool:
    return path.rsplit("/", 1)[-1] == "learning_rate"


def _assign(variables: list[Any], arrays: list[np.ndarray], kind: str) -> None:
    wanted = [(variable.path.rsplit("/", 1)[-1], tuple(variable.shape)) for variable in variables]
    shapes = [shape for _, shape in wanted]
    if shapes != [array.shape for array in arrays]:
        raise CheckpointError(
            f"The checkpoint has {kind} variables of the shapes {[a.shape for a in arrays]}, and "
            f"the network {wanted}. It is of another network: pass another model_dir."
        )
    keras_bridge.assign(variables, [jnp.array(array) for array in arrays])
