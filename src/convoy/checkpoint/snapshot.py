"""A run's whole state as host arrays and JSON, and back into a model."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.checkpoint import callback_state
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.store import Content, Json
from convoy.engine import random_state
from convoy.engine.checkpointer import Progress, Resumption
from convoy.engine.data.chunks import Place
from convoy.engine.data.device_put import fetch_absent, to_host
from convoy.engine.random_state import RandomState
from convoy.engine.state import State, Variables

_PACKAGES = ("keras-convoy", "keras", "jax", "jaxlib", "numpy")

# Keras numbers the layers that it names, over all models of a process.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")


class Snapshots:
    """Takes snapshots of one run.

    On a CPU nothing is copied: a snapshot holds the values where they are. The next device call
    would take their memory for its outcome, finds that it is in use, and takes other.
    """

    def __init__(
        self, progress: Progress, recipe: Mapping[str, Any] | None, optimizer: Json
    ) -> None:
        self.variables = Variables(progress.model, "train")
        self.recipe = dict(recipe or {})
        self.optimizer = optimizer
        self.model = describe(progress.model)
        self._versions = {name: importlib.metadata.version(name) for name in _PACKAGES}

    def take(self, progress: Progress) -> Content:
        """Return the state of a run as host arrays, which waits for its devices."""
        named = dict(named_values(self.variables, progress))
        present = list(named.values())
        if progress.config.placement.spans_processes:
            present = fetch_absent(present)
        values = dict(zip(named, map(to_host, present), strict=True))
        callbacks, arrays = callback_state.capture(progress.callbacks)
        state = {
            "epoch": progress.epoch,
            "step": progress.step,
            "total": progress.total,
            "logs": keras_bridge.python_logs(progress.logs),
            "stopped": bool(progress.model.stop_training),
            "place": progress.place.to_json(),
            "random": random_state.capture().to_json(),
            "callbacks": callbacks,
        }
        return Content(values | arrays, state, self._about(progress), self.model)

    def _about(self, progress: Progress) -> Json:
        return {
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": self._versions,
            "python": platform.python_version(),
            "replicas": progress.config.replicas,
            "accumulated": progress.config.accumulation.count,
            "optimizer": self.optimizer,
            "recipe": self.recipe,
        }


def of_first(content: Content | None) -> Content | None:
    """Return what the first process of a run has read; only that one looks into the folder."""
    if distributed.count() == 1:
        return content
    kinds = {n: (list(a.shape), str(a.dtype)) for n, a in content.arrays.items()} if content else {}
    said = distributed.from_first(content and {"arrays": kinds, "state": content.state})
    if said is None:
        return None
    empty = [np.zeros(shape, jnp.dtype(dtype)) for shape, dtype in said["arrays"].values()]
    arrays = distributed.arrays_from_first(list(content.arrays.values()) if content else empty)
    return Content(dict(zip(said["arrays"], arrays, strict=True)), said["state"], {})


def resumption(progress: Progress, content: Content) -> Resumption | None:
    """Return where a run goes on from a checkpoint.

    If the checkpoint has nothing but weights, the model is given them, and the run begins.

    Raises:
        CheckpointError: if the checkpoint is of another model.
    """
    variables = Variables(progress.model, "train")
    state = content.state
    if state.get("weights_only"):
        check_fits(variables, progress, content, ("trainable", "non_trainable"))
        for part, values in zip(variables.parts[:2], _by_part(variables, content), strict=False):
            keras_bridge.assign(part, values)
        return None
    check_fits(variables, progress, content)

    def restore() -> None:
        for part, values in zip(variables.parts, _by_part(variables, content), strict=True):
            keras_bridge.assign(part, values)
        callback_state.restore(progress.callbacks, state["callbacks"], content.arrays)
        random_state.restore(RandomState.from_json(state["random"]))

    return Resumption(
        state["epoch"],
        state["step"],
        state["total"],
        state["logs"],
        state["stopped"],
        Place.from_json(state["place"]),
        restore,
    )


def named_values(variables: Variables, progress: Progress) -> Iterator[tuple[str, jax.Array]]:
    """Return the values of all variables of a run by name."""
    for part, kind in zip(variables.parts, variables.parts._fields, strict=True):
        kept = progress.metrics if kind == "metrics" else None
        values = keras_bridge.values(part) if kept is None else kept
        for index, (variable, value) in enumerate(zip(part, values, strict=True)):
            yield name_of(kind, index, variable), value


def name_of(kind: str, index: int, variable: keras.Variable) -> str:
    return f"{kind}/{index}/{variable.path}"


def check_fits(
    variables: Variables,
    progress: Progress,
    content: Content,
    kinds: tuple[str, ...] = State._fields,
) -> None:
    """Refuse a checkpoint of another model.

    Args:
        variables: those of the model.
        progress: the run that is to go on.
        content: the checkpoint.
        kinds: what of the model it has to hold.

    Raises:
        CheckpointError: with the first variable that differs.
    """
    wanted = [
        (_comparable(name), tuple(value.shape), str(value.dtype))
        for name, value in named_values(variables, progress)
        if name.split("/")[0] in kinds
    ]
    found = [
        (_comparable(name), array.shape, str(array.dtype))
        for name, array in content.arrays.items()
        if not name.startswith("callbacks/")
    ]
    if wanted == found:
        return
    for model, checkpoint in zip(wanted, found, strict=False):
        if model != checkpoint:
            raise CheckpointError(
                f"The checkpoint is of another model: it has {_say(checkpoint)} where this one has "
                f"{_say(model)}. Build and compile the model as it was, or pass another folder."
            )
    raise CheckpointError(
        f"The checkpoint is of another model: it has {len(found)} variables, and this one "
        f"{len(wanted)}. Build and compile the model as it was, or pass another folder."
    )


def describe(model: keras.Model) -> str | None:
    """Return a model's description as Keras saves it; `None` if it has none."""
    try:
        return model.to_json()
    except (NotImplementedError, TypeError, ValueError):
        return None  # a subclass without `get_config`


def _by_part(variables: Variables, content: Content) -> Iterator[list[jax.Array]]:
    arrays = iter(content.arrays.values())
    for part in variables.parts:
        yield [jnp.array(next(arrays)) for _ in part]


def _comparable(name: str) -> str:
    """Return a name without what differs between two models that are made alike."""
    kind, index, path = name.split("/", 2)
    # A model that was loaded does not put its own name in front of its layers'.
    return "/".join([kind, index, *_NUMBER.sub("", path).split("/")[-2:]])


def _say(entry: tuple[str, tuple[int, ...], str]) -> str:
    name, shape, dtype = entry
    return f"{name.split('/', 2)[-1]!r} {list(shape)} {dtype}"
