"""What a compiled program was, and how it ran: a folder of JSON for each."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import keras
import numpy as np
from convoy.estimator.network import Network
from convoy.estimator.spec import ModeKeys

_PACKAGES = ("keras-convoy", "keras", "jax", "jaxlib", "numpy")


class Timer(keras.callbacks.Callback):
    """Notes the time of every device call."""

    def __init__(self) -> None:
        super().__init__()
        self.executions: list[dict[str, float]] = []
        self._done = self._began = 0.0

    def _begin(self, batch: int, logs: Any = None) -> None:
        del logs
        self._done, self._began = batch, time.perf_counter()

    def _end(self, batch: int, logs: Any = None) -> None:
        for value in (logs or {}).values():
            if not isinstance(value, dict):
                np.asarray(value)  # waits for the devices
        seconds = time.perf_counter() - self._began
        self.executions.append({"steps": batch + 1 - self._done, "seconds": seconds})

    on_train_batch_begin = on_test_batch_begin = on_predict_batch_begin = _begin
    on_train_batch_end = on_test_batch_end = on_predict_batch_end = _end


class Report:
    """Writes about the run of a network in a block, if there is a folder for it.

    In the block it yields callbacks for `fit` and its sisters.

    Args:
        folder: where the report's own folder is made; `None` writes nothing.
        network: what runs.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, network: Network) -> None:
        self.folder = None if folder is None else Path(folder)
        self.network = network
        self.timer = Timer()

    def __enter__(self) -> list[keras.callbacks.Callback]:
        return [] if self.folder is None else [self.timer]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.folder is None or kind not in (None, GeneratorExit):
            return
        own = _new_folder(self.folder)
        for name, content in (
            ("compilation", self._compilation()),
            ("execution", self._execution()),
            ("framework", _framework()),
        ):
            (own / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")

    def _compilation(self) -> dict[str, Any]:
        network, model = self.network, self.network.model
        stages = model.get_pipeline_stage_assignment()
        seconds = [one["seconds"] for one in self.timer.executions]
        # Only the first call compiles; what it took more than the others is an estimate.
        compiling = seconds[0] - statistics.median(seconds[1:]) if len(seconds) > 1 else None
        training = network.spec.mode == ModeKeys.TRAIN
        return {
            "program": ModeKeys(network.spec.mode).name.lower(),
            "devices": [str(device) for device in network.strategy.devices],
            "replicas": network.replicas,
            "stages": 1 if stages is None else max(stages) + 1,
            "steps_per_execution": network.steps_per_execution,
            "gradient_accumulation": network.accumulated,
            "compilation_seconds": compiling,
            "parameters": model.count_params(),
            "bytes": {
                "weights": _bytes(model.trainable_variables),
                "statistics": _bytes(model.non_trainable_variables),
                "optimizer": _bytes(model.optimizer.variables) if training else 0,
            },
            "inputs": {
                name: {"shape": list(shape), "dtype": dtype}
                for name, shape, dtype in network.signature.key
            },
            "layers": [_describe(layer) for layer in _layers(model)],
        }

    def _execution(self) -> dict[str, Any]:
        executions = self.timer.executions
        samples = self.network.signature.element.samples * self.network.batches_per_step
        later = executions[1:] or executions
        steps, seconds = (sum(one[key] for one in later) for key in ("steps", "seconds"))
        return {
            "executions": len(executions),
            "steps": sum(one["steps"] for one in executions),
            "seconds": sum(one["seconds"] for one in executions),
            "samples_per_second": steps * samples / seconds if seconds else None,
            "first_execution_compiles": True,
            "each": executions,
        }


def _new_folder(parent: Path) -> Path:
    """Make a folder whose name says when, and in which process."""
    while True:
        now = datetime.datetime.now().isoformat(timespec="milliseconds").replace(":", "-")
        folder = parent / f"tf_report__{now}__{os.getpid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder


def _framework() -> dict[str, Any]:
    return {
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
    }


def _layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer


def _describe(layer: keras.layers.Layer) -> dict[str, Any]:
    try:
        shape: Any = keras.tree.map_structure(lambda t: list(t.shape), layer.output)
    except (AttributeError, ValueError):  # of a layer that is called several times
        shape = None
    return {
        "name": layer.name,
        "type": type(layer).__name__,
        "output": shape,
        "parameters": layer.count_params() if layer.built else 0,
    }


def _bytes(variables: list[Any]) -> int:
    return sum(
        int(np.prod(variable.shape)) * np.dtype(variable.value.dtype).itemsize
        for variable in variables
    )
