"""Compilation of an exported model's programs for a target, as `convoy serve` would run them."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import jax
import keras
from convoy import compile_target
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import default_observer
from convoy.serving import artifact
from convoy.serving.errors import ArtifactError
from convoy.serving.forward_pass import input_shapes


def run_exported(folder: str | Path) -> None:
    """Call each program of the newest version of an exported model, inside of `compile_run`.

    Args:
        folder: the folder of the model, or that of one version.

    Raises:
        ValueError: if the folder has no exported model.
    """
    base = Path(folder)
    versions = artifact.versions_in(base)
    path = versions[max(versions)] if versions else base
    try:
        found = artifact.read(path)
    except ArtifactError as error:
        raise ValueError(
            f"{folder} has no exported model: {error} Pass a folder that convoy export has written."
        ) from None
    observer = default_observer()
    model = cast(keras.Model, SimpleNamespace(name=base.name))
    with observer.run("serve", model, ExecutionConfig(Placement(None))):
        for size, program in found.programs.items():
            exported = jax.export.deserialize(bytearray(program.code))
            call = observer.program(f"batch of {size}", jax.jit(exported.call))
            weights = [found.weights[name] for name in program.weights]
            inputs = input_shapes(found.signature.inputs, size)
            call(*compile_target.stand_ins((weights, *inputs), None))
