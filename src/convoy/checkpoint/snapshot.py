"""Capturing and restoring of a run's whole state, as host arrays and JSON."""

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
from convoy.checkpoint.store import Checkpoint
from convoy.engine import random_state
from convoy.engine.checkpointer import Resumption, RunState
from convoy.engine.data.chunks import DataPosition
from convoy.engine.data.placement import fetch_absent, to_host
from convoy.engine.random_state import RandomState
from convoy.engine.state import State, Variables
from convoy.types import Json
from convoy.versions import installed_versions

_STATE = ("epoch", "step", "total", "logs", "stopped", "place", "random", "callbacks")
# Keras numbers the layers of a process, so equal models differ in these numbers.
_NUMBER = re.compile(r"_\d+(?=[_/]|$)")


class Snapshotter:
    """Takes snapshots of one run.

    On a CPU nothing is copied: a snapshot references the values' buffers. The next device call
    would donate these buffers to its results; while they are referenced, it allocates others.

    Args:
        run_state: the run.
        recipe: further information for each checkpoint.
        optimizer: the optimizer's settings.
    """

    def __init__(
        self, run_state: RunState, recipe: Mapping[str, Any] | None, optimizer: Json
    ) -> None:
        self.variables = Variables(run_state.model, "train")
        self.recipe = dict(recipe or {})
        self.optimizer = optimizer
        self.model = describe(run_state.model)
        self._versions = installed_versions()

    def take(self, run_state: RunState) -> Checkpoint:
        """Return the state of a run; this waits for the devices."""
        named = dict(named_values(self.variables, run_state))
        present = list(named.values())
        if run_state.config.placement.spans_processes:
            present = fetch_absent(present)
        values = dict(zip(named, map(to_host, present), strict=True))
        callbacks, arrays = callback_state.capture(run_state.callbacks)
        state = {
            "epoch": run_state.epoch,
            "step": run_state.step,
            "total": run_state.total,
            "logs": keras_bridge.python_logs(run_state.logs),
            "stopped": bool(run_state.model.stop_training),
            "place": run_state.position.to_json(),
            "random": random_state.capture().to_json(),
            "callbacks": callbacks,
        }
        return Checkpoint(values | arrays, state, self._about(run_state), self.model)

    def _about(self, run_state: RunState) -> Json:
        return {
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": self._versions,
            "python": platform.python_version(),
            "replicas": run_state.config.replicas,
            "accumulated": run_state.config.gradient_accumulation,
            "optimizer": self.optimizer,
            "recipe": self.recipe,
        }


def from_first_process(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Send the checkpoint from the first process, the only one that reads files, to the others."""
    if distributed.count() == 1:
        return checkpoint
    arrays = checkpoint.arrays if checkpoint else {}
    types = {name: (list(array.shape), str(array.dtype)) for name, array in arrays.items()}
    header = distributed.from_first(checkpoint and {"arrays": types, "state": checkpoint.state})
    if header is None:
        return None
    empty = [np.zeros(shape, jnp.dtype(dtype)) for shape, dtype in header["arrays"].values()]
    received = distributed.arrays_from_first(list(arrays.values()) if checkpoint else empty)
    return Checkpoint(dict(zip(header["arrays"], received, strict=True)), header["state"], {})


def resumption(run_state: RunState, checkpoint: Checkpoint) -> Resumption | None:
    """Return the point from which a run resumes.

    If the checkpoint has only weights, they are assigned to the model, and a new run begins.

    Raises:
        CheckpointError: if the checkpoint is of another model.
    """
    variables = Variables(run_state.model, "train")
    state = checkpoint.state
    if state.get("weights_only"):
        check_fits(variables, run_state, checkpoint, ("trainable", "non_trainable"))
        for part, values in zip(variables.parts[:2], _by_part(variables, checkpoint), strict=False):
            keras_bridge.assign(part, values)
        return None
    check_fits(variables, run_state, checkpoint)
    if missing := [name for name in _STATE if name not in state]:
        raise CheckpointError(
            f"The checkpoint has no {missing[0]!r}: it was not written by fit(). Pass another "
            "folder."
        )
    random = _valid_random_state(state["random"])
    position = _valid_position(state["place"])

    def restore() -> None:
        for part, values in zip(variables.parts, _by_part(variables, checkpoint), strict=True):
            keras_bridge.assign(part, values)
        callback_state.restore(run_state.callbacks, state["callbacks"], checkpoint.arrays)
        random_state.restore(random)

    return Resumption(
        state["epoch"],
        state["step"],
        state["total"],
        state["logs"],
        state["stopped"],
        position,
        restore,
    )


def _valid_random_state(state: Json) -> RandomState:
    """Return the random state in a checkpoint, which the generators of this process accept.

    Raises:
        CheckpointError: if they do not accept it.
    """
    try:
        random = RandomState.from_json(state)
        with random_state.as_of(random):
            return random
    except Exception as error:  # Each generator checks its state itself, and raises anything.
        raise CheckpointError(
            f"The random state in the checkpoint cannot be used: {error!r}. Pass another folder."
        ) from error


def _valid_position(place: Json) -> DataPosition:
    counts = [place.get("before"), place.get("done")]
    if place.keys() - set(DataPosition._fields) or not all(
        isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts
    ):
        raise CheckpointError(
            "The checkpoint's position in the data cannot be used: it has the fields "
            f"{', '.join(place)}, and before and done are {counts}. Pass another folder."
        )
    return DataPosition(
        _valid_random_state(place.get("order", {})),
        place["before"],
        place["done"],
        place.get("state"),
    )


def named_values(variables: Variables, run_state: RunState) -> Iterator[tuple[str, jax.Array]]:
    """Yield the names and values of all variables of a run."""
    for part, kind in zip(variables.parts, variables.parts._fields, strict=True):
        kept = run_state.metrics if kind == "metrics" else None
        values = keras_bridge.values(part) if kept is None else kept
        for index, (variable, value) in enumerate(zip(part, values, strict=True)):
            yield name_of(kind, index, variable), value


def name_of(kind: str, index: int, variable: keras.Variable) -> str:
    return f"{kind}/{index}/{variable.path}"


def check_fits(
    variables: Variables,
    run_state: RunState,
    checkpoint: Checkpoint,
    kinds: tuple[str, ...] = State._fields,
) -> None:
    """Check that a checkpoint is of the same model.

    Args:
        variables: the model's variables.
        run_state: the run to resume.
        checkpoint: the checkpoint.
        kinds: the kinds of variables that the checkpoint must have.

    Raises:
        CheckpointError: if it is of another model; the message names the first difference.
    """
    wanted = [
        (_comparable(name), tuple(value.shape), str(value.dtype))
        for name, value in named_values(variables, run_state)
        if name.split("/")[0] in kinds
    ]
    found = [
        (_comparable(name), array.shape, str(array.dtype))
        for name, array in checkpoint.arrays.items()
        if not name.startswith("callbacks/")
    ]
    if wanted == found:
        return
    for own, saved in zip(wanted, found, strict=False):
        if own != saved:
            raise CheckpointError(
                f"The checkpoint is of another model: it has {_format(saved)} where this one has "
                f"{_format(own)}. Build and compile the same model, or pass another folder."
            )
    raise CheckpointError(
        f"The checkpoint is of another model: it has {len(found)} variables, and this one "
        f"{len(wanted)}. Build and compile the same model, or pass another folder."
    )


def describe(model: keras.Model) -> str | None:
    """Return a model's configuration in Keras's JSON format; `None` if it has none."""
    try:
        return model.to_json()
    except (NotImplementedError, TypeError, ValueError):
        return None  # A subclass without `get_config`.


def _by_part(variables: Variables, checkpoint: Checkpoint) -> Iterator[list[jax.Array]]:
    arrays = iter(checkpoint.arrays.values())
    for part in variables.parts:
        yield [jnp.array(next(arrays)) for _ in part]


def _comparable(name: str) -> str:
    """Return a name without the parts that differ between two equal models."""
    kind, index, path = name.split("/", 2)
    # In a loaded model, the paths of variables do not begin with the model's name.
    return "/".join([kind, index, *_NUMBER.sub("", path).split("/")[-2:]])


def _format(entry: tuple[str, tuple[int, ...], str]) -> str:
    name, shape, dtype = entry
    return f"{name.split('/', 2)[-1]!r} {list(shape)} {dtype}"
