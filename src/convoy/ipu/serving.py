"""Models and functions, written for `convoy serve`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import convoy
import keras
import numpy as np
from convoy.ipu import notice

Step = Callable[..., Any]
Predict = Callable[..., dict[str, np.ndarray]]
"""Takes arrays of a whole batch, in the order of the inputs or by their names."""


def export_keras(
    model: keras.Model,
    export_dir: str | Path,
    batch_size: int | None = None,
    output_names: Sequence[str] | str | None = None,
    preprocessing_step: Step | None = None,
    preprocessing_step_signature: Sequence[Any] | None = None,
    postprocessing_step: Step | None = None,
    postprocessing_step_signature: Sequence[Any] | None = None,
    purge_export_dir: bool = False,
) -> Predict:
    """Write a Keras model for `convoy serve`, for batches of one size.

    Args:
        model: a functional or sequential model with weights.
        export_dir: where the model's versions are; this is version 1. If its own name is a
            number, that is the version, and the folder around it the model's.
        batch_size: samples of a batch; not needed if the model's input says it.
        output_names: by default `output_0` and so on.
        preprocessing_step: takes what requests bring, and returns what the model takes. It is
            made of Keras layers and operations, or a JAX function under
            `convoy.estimator.function`.
        preprocessing_step_signature: shapes and types of its arguments, batch included: anything
            that has a `shape` and a `dtype`. Not needed for a `keras.Model`.
        postprocessing_step: takes the model's outputs, and returns what is answered.
        postprocessing_step_signature: shapes and types of its arguments; they are compared with
            the model's outputs.
        purge_export_dir: whether a folder that is not empty is emptied first.

    Returns:
        A function that runs what was written.

    Raises:
        ValueError: if the folder is not empty, the batch is not known, or a signature is missing.
        TypeError: if a signature is not a list.
    """
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(
            f"{model.name!r} is not built, or is a subclassed model: the shape of its input is not "
            "known. Begin it with a keras.Input."
        )
    return _Export(
        lambda *inputs: model(inputs[0] if len(inputs) == 1 else list(inputs)),
        list(model.inputs),
        model.name,
        output_names,
        _steps(preprocessing_step, preprocessing_step_signature, "preprocessing_step"),
        _steps(postprocessing_step, postprocessing_step_signature, "postprocessing_step"),
    ).write(export_dir, batch_size, purge_export_dir)


def export_single_step(
    predict_step: Step,
    export_dir: str | Path,
    iterations: int = 1,
    predict_step_signature: Sequence[Any] | None = None,
    input_dataset: Any = None,
    output_names: Sequence[str] | str | None = None,
    preprocessing_step: Step | None = None,
    preprocessing_step_signature: Sequence[Any] | None = None,
    postprocessing_step: Step | None = None,
    postprocessing_step_signature: Sequence[Any] | None = None,
    purge_export_dir: bool = False,
) -> Predict:
    """Write a function for `convoy serve`.

    Args:
        predict_step: takes a batch, and is made of Keras layers and operations, or a JAX function
            under `convoy.estimator.function`.
        export_dir: as for `export_keras`.
        iterations: has no effect: every request is a device call.
        predict_step_signature: shapes and types of its arguments, batch included.
        input_dataset: whose first element has these shapes and types, in its place.
        output_names: as for `export_keras`, and so are all that follow.
        preprocessing_step: what comes before.
        preprocessing_step_signature: of its arguments.
        postprocessing_step: what comes after.
        postprocessing_step_signature: of its arguments.
        purge_export_dir: whether a folder that is not empty is emptied first.

    Returns:
        A function that runs what was written.
    """
    if iterations != 1:
        notice.without_effect(["iterations"], "serving")
    if input_dataset is not None:
        if predict_step_signature is not None:
            raise ValueError(
                "Both predict_step_signature and input_dataset were passed. Pass one of them."
            )
        first = next(iter(input_dataset))
        predict_step_signature = list(first) if isinstance(first, (list, tuple)) else [first]
    found = _steps(predict_step, predict_step_signature, "predict_step")
    assert found is not None
    return _Export(
        predict_step,
        found[1],
        _name(predict_step),
        output_names,
        _steps(preprocessing_step, preprocessing_step_signature, "preprocessing_step"),
        _steps(postprocessing_step, postprocessing_step_signature, "postprocessing_step"),
    ).write(export_dir, None, purge_export_dir)


def export_pipeline(
    computational_stages: Sequence[Step],
    export_dir: str | Path,
    iterations: int = 1,
    inputs: Sequence[Any] | None = None,
    device_mapping: Sequence[int] | None = None,
    pipeline_schedule: Any = None,
    poplar_options: Any = None,
    name: str | None = None,
    predict_step_signature: Sequence[Any] | None = None,
    input_dataset: Any = None,
    **settings: Any,
) -> Predict:
    """Write functions that follow each other for `convoy serve`, as one program.

    Args:
        computational_stages: each takes what the one before it returned.
        export_dir: as for `export_keras`.
        iterations: has no effect, as have all that follow up to `name`.
        inputs: values that the first stage is given before the data.
        device_mapping: a server runs a model on one device.
        pipeline_schedule: the same.
        poplar_options: the same.
        name: the same.
        predict_step_signature: as for `export_single_step`, and so are all that follow.
        input_dataset: in its place.
        **settings: the others of `export_single_step`.

    Returns:
        A function that runs what was written.
    """
    ignored = {
        "device_mapping": device_mapping,
        "pipeline_schedule": pipeline_schedule,
        "poplar_options": poplar_options,
        "name": name,
    }
    notice.without_effect([n for n, value in ignored.items() if value is not None], "serving")
    stages, given = list(computational_stages), list(inputs or ())

    def run(*values: Any) -> Any:
        found: Any = (*given, *values)
        for stage in stages:
            found = stage(*found) if isinstance(found, (list, tuple)) else stage(found)
        return found

    return export_single_step(
        run, export_dir, iterations, predict_step_signature, input_dataset, **settings
    )


class _Export:
    """What is computed between a request and its answer."""

    def __init__(
        self,
        compute: Step,
        specs: list[Any],
        name: str,
        output_names: Sequence[str] | str | None,
        before: tuple[Step, list[Any]] | None,
        after: tuple[Step, list[Any]] | None,
    ) -> None:
        self.compute, self.specs, self.name = compute, specs, name
        self.names = [output_names] if isinstance(output_names, str) else output_names
        self.before, self.after = before, after

    def write(self, export_dir: str | Path, batch_size: int | None, purge: bool) -> Predict:
        # What serves models is above what trains them.
        from convoy.serving.servable import Servable

        size = self._size(batch_size)
        folder = Path(export_dir)
        if folder.exists() and not purge and (folder.is_file() or any(folder.iterdir())):
            raise ValueError(
                f"export_dir={str(folder)!r} is not empty. Pass another, or purge_export_dir=True."
            )
        network = self._network()
        if purge:
            shutil.rmtree(folder, ignore_errors=True)
        base, version = folder, 1
        if folder.name.isdecimal():
            if folder.is_dir():
                folder.rmdir()  # empty: the version appears whole, under this name
            base, version = folder.parent, int(folder.name)
        path = convoy.export(
            network, base, version=version, batch_sizes=[size], output_names=self.names
        )
        return _caller(Servable(path))

    def _size(self, batch_size: int | None) -> int:
        """Return the batch, as all that is said of it agrees."""
        if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
            raise ValueError(f"batch_size={batch_size!r} is not a number of samples. Pass 1 up.")
        specs = [*self.specs, *(self.before[1] if self.before else [])]
        said = {spec.shape[0] for spec in specs if spec.shape and spec.shape[0] is not None}
        said |= {batch_size} - {None}
        if not said:
            raise ValueError(f"The batch of {self.name!r} is not known. Pass batch_size.")
        if len(said) > 1:
            raise ValueError(
                f"The batch of {self.name!r} is given as {sorted(said)}. Pass the same everywhere."
            )
        return int(said.pop())

    def _network(self) -> keras.Model:
        specs = self.before[1] if self.before else self.specs
        inputs = [
            keras.Input(tuple(spec.shape)[1:], dtype=_dtype(spec), name=_input_name(spec, number))
            for number, spec in enumerate(specs)
        ]
        values: Any = inputs
        if self.before is not None:
            values = _listed(self.before[0](*values))
        outputs = self.compute(*values)
        if self.after is not None:
            step, wanted = self.after
            found = _listed(outputs)
            _compare(wanted, found)
            outputs = step(*found)
        single = inputs[0] if len(inputs) == 1 else inputs
        return keras.Model(single, outputs, name=self.name)


def _steps(
    step: Step | None, signature: Sequence[Any] | None, name: str
) -> tuple[Step, list[Any]] | None:
    """Return a step with its signature; of one that comes after the model it may be left out."""
    if step is None:
        return None
    if signature is None:
        signature = getattr(step, "input_signature", None) or getattr(step, "inputs", None)
    if signature is None and name == "postprocessing_step":
        return step, []
    if signature is None:
        raise ValueError(
            f"The shapes that {name} takes are not known. Pass {name}_signature: a list with a "
            "keras.Input for each of its arguments."
        )
    if not isinstance(signature, (list, tuple)):
        raise TypeError(f"{name}_signature is {type(signature).__name__}, not a list.")
    if not signature:
        raise ValueError(f"{name}_signature is empty. Pass shape and type of each argument.")
    for spec in signature:
        if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
            raise TypeError(
                f"{name}_signature has {spec!r} in it. Pass something with a shape and a dtype, "
                "such as a keras.Input."
            )
    return step, list(signature)


def _compare(wanted: list[Any], found: list[Any]) -> None:
    if wanted and [tuple(w.shape)[1:] for w in wanted] != [tuple(f.shape)[1:] for f in found]:
        raise ValueError(
            f"postprocessing_step_signature has the shapes {[tuple(w.shape) for w in wanted]}, but "
            f"the outputs have {[tuple(f.shape) for f in found]}."
        )


def _caller(servable: Any) -> Predict:
    names = [tensor.name for tensor in servable.signature.inputs]

    def predict(*arrays: Any, **named: Any) -> dict[str, np.ndarray]:
        given = dict(zip(names, arrays, strict=False)) | named
        typed = {
            tensor.name: np.asarray(given[tensor.name], tensor.numpy_dtype)
            for tensor in servable.signature.inputs
        }
        return servable.run(typed)

    return predict


def _listed(values: Any) -> list[Any]:
    if isinstance(values, dict):
        return [values[key] for key in sorted(values)]
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _name(step: Step) -> str:
    word = getattr(step, "__name__", "")
    return word if word.isidentifier() else "predict_step"


def _dtype(spec: Any) -> str:
    return keras.backend.standardize_dtype(spec.dtype)


def _input_name(spec: Any, number: int) -> str:
    word = getattr(spec, "name", None)
    return word if isinstance(word, str) and word else f"input_{number}"
