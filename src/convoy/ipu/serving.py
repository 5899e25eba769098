"""Export of models and functions for `convoy serve`."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import convoy
import keras
import numpy as np
from convoy.arguments import whole_number
from convoy.estimator.user_functions import as_arguments, as_list
from convoy.ipu import checks, notice
from convoy.serving.servable import Servable

Step = Callable[..., Any]
Specs = Sequence[Any]
"""Objects with a shape and a dtype, such as `keras.Input`s."""
Predict = Callable[..., dict[str, np.ndarray]]
"""Takes arrays of a batch, in the order of the inputs or by their names."""


def export_keras(
    model: keras.Model,
    export_dir: str | Path,
    batch_size: int | None = None,
    output_names: Sequence[str] | str | None = None,
    preprocessing_step: Step | None = None,
    preprocessing_step_signature: Specs | None = None,
    postprocessing_step: Step | None = None,
    postprocessing_step_signature: Specs | None = None,
    purge_export_dir: bool = False,
) -> Predict:
    """Export a Keras model for `convoy serve`, for one batch size.

    Args:
        model: a functional or sequential model with weights.
        export_dir: folder of the model's versions; this is version 1. If its own name is a number,
            that is the version, and its parent the folder of the versions.
        batch_size: batch size; not required if the model's input has it.
        output_names: names of the outputs; by default `output_0` and so on.
        preprocessing_step: a function of the request's arrays that returns the model's inputs. It
            uses Keras layers and operations, or is a JAX function decorated with
            `convoy.estimator.function`.
        preprocessing_step_signature: shapes and dtypes of its arguments, including the batch: any
            objects with a `shape` and a `dtype`. Not required for a `keras.Model`.
        postprocessing_step: a function of the model's outputs that returns the response.
        postprocessing_step_signature: shapes and dtypes of its arguments; they are compared with
            the model's outputs.
        purge_export_dir: whether to empty a folder that is not empty.

    Returns:
        A function that runs the exported model.

    Raises:
        ValueError: if the folder is not empty, the batch size is unknown, or a signature is
            missing.
        TypeError: if a signature is not a list.
    """
    if not model.built or not getattr(model, "inputs", None):
        raise ValueError(f"{model.name!r} has unknown input shapes. Begin it with a keras.Input.")
    network, size = _network(
        model.name,
        lambda *inputs: model(inputs[0] if len(inputs) == 1 else list(inputs)),
        list(model.inputs),
        (preprocessing_step, preprocessing_step_signature),
        (postprocessing_step, postprocessing_step_signature),
        batch_size,
    )
    return _write(network, size, export_dir, output_names, purge_export_dir)


def export_single_step(
    predict_step: Step,
    export_dir: str | Path,
    iterations: int = 1,
    predict_step_signature: Specs | None = None,
    input_dataset: Any = None,
    output_names: Sequence[str] | str | None = None,
    preprocessing_step: Step | None = None,
    preprocessing_step_signature: Specs | None = None,
    postprocessing_step: Step | None = None,
    postprocessing_step_signature: Specs | None = None,
    purge_export_dir: bool = False,
) -> Predict:
    """Export a function for `convoy serve`.

    Args:
        predict_step: a function of a batch. It uses Keras layers and operations, or is a JAX
            function decorated with `convoy.estimator.function`.
        export_dir: as for `export_keras`.
        iterations: no effect: every request is a device call.
        predict_step_signature: shapes and dtypes of its arguments, including the batch.
        input_dataset: a dataset whose first element has these shapes and dtypes, instead of a
            signature.
        output_names: as for `export_keras`.
        preprocessing_step: as for `export_keras`.
        preprocessing_step_signature: as for `export_keras`.
        postprocessing_step: as for `export_keras`.
        postprocessing_step_signature: as for `export_keras`.
        purge_export_dir: as for `export_keras`.

    Returns:
        A function that runs the exported function.
    """
    notice.no_effect("serving", {"iterations": iterations != 1})
    if input_dataset is not None:
        if predict_step_signature is not None:
            raise ValueError("Pass predict_step_signature or input_dataset, not both.")
        predict_step_signature = as_list(next(iter(input_dataset)))
    word = getattr(predict_step, "__name__", "")
    network, size = _network(
        word if word.isidentifier() else "predict_step",
        predict_step,
        _signature("predict_step", predict_step, predict_step_signature),
        (preprocessing_step, preprocessing_step_signature),
        (postprocessing_step, postprocessing_step_signature),
    )
    return _write(network, size, export_dir, output_names, purge_export_dir)


def export_pipeline(
    computational_stages: Sequence[Step],
    export_dir: str | Path,
    iterations: int = 1,
    inputs: Sequence[Any] | None = None,
    device_mapping: Sequence[int] | None = None,
    pipeline_schedule: Any = None,
    poplar_options: Any = None,
    name: str | None = None,
    predict_step_signature: Specs | None = None,
    input_dataset: Any = None,
    **settings: Any,
) -> Predict:
    """Export the stages of a pipeline for `convoy serve`, as one program.

    Args:
        computational_stages: functions; each takes what the previous one returned.
        export_dir: as for `export_keras`.
        iterations: no effect.
        inputs: values that are passed to the first stage before the data.
        device_mapping: no effect: a server runs a model on one device.
        pipeline_schedule: no effect.
        poplar_options: no effect.
        name: no effect.
        predict_step_signature: as for `export_single_step`.
        input_dataset: as for `export_single_step`.
        **settings: other arguments of `export_single_step`.

    Returns:
        A function that runs the exported pipeline.
    """
    ignored = {
        "device_mapping": device_mapping,
        "pipeline_schedule": pipeline_schedule,
        "poplar_options": poplar_options,
        "name": name,
    }
    notice.no_effect("serving", {n: value is not None for n, value in ignored.items()})

    def run(*values: Any) -> Any:
        found: Any = (*(inputs or ()), *values)
        for stage in computational_stages:
            found = stage(*found) if isinstance(found, (list, tuple)) else stage(found)
        return found

    return export_single_step(
        run, export_dir, iterations, predict_step_signature, input_dataset, **settings
    )


def _network(
    name: str,
    compute: Step,
    specs: list[Any],
    before: tuple[Step | None, Specs | None],
    after: tuple[Step | None, Specs | None],
    batch_size: int | None = None,
) -> tuple[keras.Model, int]:
    """Return the computation between a request and its response, and its batch size.

    Args:
        name: name of the model.
        compute: the model, or a function.
        specs: shapes and dtypes of its arguments.
        before: the preprocessing step and its signature; the step may be `None`.
        after: the postprocessing step and its signature; the step may be `None`.
        batch_size: batch size; not required if a shape has it.
    """
    preprocess, postprocess = before[0], after[0]
    given = specs if preprocess is None else _signature("preprocessing_step", *before)
    size = _batch_size(name, batch_size, [*specs, *given])
    inputs = [
        keras.Input(
            tuple(spec.shape)[1:],
            dtype=keras.backend.standardize_dtype(spec.dtype),
            name=getattr(spec, "name", None) or f"input_{number}",
        )
        for number, spec in enumerate(given)
    ]
    outputs = compute(*(inputs if preprocess is None else _values(preprocess(*inputs))))
    if postprocess is not None:
        values = _values(outputs)
        _check_outputs(_signature("postprocessing_step", *after), values)
        outputs = postprocess(*values)
    return keras.Model(inputs[0] if len(inputs) == 1 else inputs, outputs, name=name), size


def _batch_size(name: str, batch_size: int | None, specs: list[Any]) -> int:
    """Return the batch size, which must be the same wherever it is given."""
    if batch_size is not None:
        whole_number("batch_size", batch_size, "a number of samples")
    sizes = [batch_size, *(spec.shape[0] for spec in specs if spec.shape)]
    given = {int(size) for size in sizes if size is not None}
    if not given:
        raise ValueError(f"The batch size of {name!r} is not known. Pass batch_size.")
    if len(given) > 1:
        raise ValueError(f"The batch size of {name!r} is given as {sorted(given)}. Pass one.")
    return given.pop()


def _write(
    network: keras.Model,
    batch_size: int,
    export_dir: str | Path,
    output_names: Sequence[str] | str | None,
    purge: bool,
) -> Predict:
    """Write a version of a model, and return a function that runs it."""
    folder = Path(export_dir)
    if folder.exists() and not purge and (folder.is_file() or any(folder.iterdir())):
        raise ValueError(
            f"export_dir={str(folder)!r} is not empty. Pass another, or purge_export_dir=True."
        )
    if purge:
        shutil.rmtree(folder, ignore_errors=True)
    base, version = folder, 1
    if folder.name.isdecimal():
        if folder.is_dir():
            folder.rmdir()  # it is empty; the version is renamed to it when it is complete
        base, version = folder.parent, int(folder.name)
    names = [output_names] if isinstance(output_names, str) else output_names
    sizes = [batch_size]
    path = convoy.export(network, base, version=version, batch_sizes=sizes, output_names=names)
    servable = Servable(path)
    inputs = servable.signature.inputs

    def predict(*arrays: Any, **named: Any) -> dict[str, np.ndarray]:
        given = dict(zip([tensor.name for tensor in inputs], arrays, strict=False)) | named
        return servable.run({t.name: np.asarray(given[t.name], t.numpy_dtype) for t in inputs})

    return predict


def _signature(name: str, step: Step | None, signature: Specs | None) -> list[Any]:
    """Return the signature of a step; that of a postprocessing step may be left out."""
    if signature is None:
        signature = getattr(step, "input_signature", None) or getattr(step, "inputs", None)
    if signature is None and name == "postprocessing_step":
        return []
    if signature is None:
        raise ValueError(f"The shapes of {name} are not known. Pass {name}_signature.")
    checks.instance(f"{name}_signature", signature, (list, tuple), "a list")
    if not signature:
        raise ValueError(f"{name}_signature is empty. Pass shape and dtype of each argument.")
    for spec in signature:
        if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
            raise TypeError(f"{name}_signature has {spec!r}. Pass specs with a shape and a dtype.")
    return list(signature)


def _check_outputs(expected: list[Any], found: list[Any]) -> None:
    shapes, found_shapes = ([tuple(spec.shape) for spec in specs] for specs in (expected, found))
    if shapes and [shape[1:] for shape in shapes] != [shape[1:] for shape in found_shapes]:
        raise ValueError(
            f"postprocessing_step_signature has the shapes {shapes}, but the outputs have "
            f"{found_shapes}. Pass the shapes of the outputs."
        )


def _values(outputs: Any) -> list[Any]:
    values, named = as_arguments(outputs)
    return [*values, *(named[key] for key in sorted(named))]
