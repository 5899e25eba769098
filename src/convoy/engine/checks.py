"""Checks of a model and its data, made before anything is compiled."""

from collections.abc import Callable
from typing import Literal

import jax
import keras
import numpy as np
from convoy import keras_bridge, user_warnings
from convoy.engine.numerics.numerics import Settings
from convoy.types import Data, PyTree

# Values that are checked at a time, which bounds the memory that a check takes.
WINDOW = 1 << 22

SPARSE = "sparse_categorical_crossentropy"

# The kinds of NumPy dtypes that hold text or objects.
TEXT = "USO"

# An option that divides a step into parts.
PIPELINE = "pipeline stages"


def check_model(model: keras.Model, method: str, settings: Settings) -> None:
    """Raise an error for a model that cannot run.

    Args:
        model: the model.
        method: the method of the model that was called.
        settings: precision and loss scale of its strategy.
    """
    if settings.precision is not None:
        settings.precision.check(model)
    if method.startswith("predict"):
        return
    if not model.compiled:
        raise ValueError(
            f"{method}() was called on {model.name!r}, which has not been compiled. "
            "Call model.compile(optimizer=..., loss=...) first."
        )
    if method in ("fit", "train_on_batch") and settings.loss_scaling is not None:
        check_loss_scale(model)


def check_custom_step(model: keras.Model, method: str, dividing_options: list[str]) -> None:
    """Raise an error if a custom step of a model cannot be divided into parts.

    Args:
        model: the model.
        method: the method of the model that was called.
        dividing_options: options of the strategy that run the parts of a step separately.
    """
    step = f"{keras_bridge.RUN_METHODS[method]}_step"
    if keras_bridge.overridden(model, (step,)):
        # Stages cannot run a `compute_loss` of the model either.
        in_stages = PIPELINE in dividing_options
        advice = "" if in_stages else f", or override compute_loss instead of {step}"
        raise ValueError(
            f"{type(model).__name__} overrides {step}, which cannot be divided for "
            f"{', '.join(dividing_options)}. Leave that out{advice}."
        )


def check_loss_scale(model: keras.Model) -> None:
    """Raise an error if the optimizer of a model with a loss scale scales the loss as well."""
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        own = "is a LossScaleOptimizer, which stock Keras puts around it under mixed_float16"
    elif optimizer.loss_scale_factor is not None:
        own = f"has loss_scale_factor={optimizer.loss_scale_factor}"
    else:
        return
    raise ValueError(
        f"The strategy has a loss_scale, but the optimizer of {model.name!r} {own}, so the loss "
        "would be scaled twice. Leave out one of them. If the model was compiled outside the "
        "strategy's scope, compile it again."
    )


def check_steps_per_execution(value: object) -> int | Literal["auto"]:
    """Return the argument if it is valid."""
    if value == "auto":
        return "auto"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError(
        f"steps_per_execution={value!r} is not a number of steps. Pass 1 or more, or 'auto'."
    )


def check_arrays(data: tuple[Data, Data, Data]) -> int:
    """Return the number of samples in arrays; raise an error if it is 0, or if they hold text."""
    for name, part in zip(("x", "y", "sample_weight"), data, strict=True):
        for leaf in jax.tree.leaves(part):
            dtype = getattr(leaf, "dtype", None)
            if isinstance(dtype, np.dtype) and dtype.kind in TEXT:
                raise ValueError(
                    f"{name} holds values of type {leaf.dtype}, but devices compute with numbers. "
                    "Convert it first: with astype('float32') if it contains numbers, or by "
                    "mapping words to integers."
                )
    has_none = data[0] is not None and not jax.tree.leaves(data[0])
    # Keras reports a missing input itself, and the targets have the same number of samples.
    return count_samples(data if has_none else data[0])


def count_samples(x: Data) -> int:
    """Return the number of samples in arrays; raise an error if it is 0."""
    leaves = [leaf for leaf in jax.tree.leaves(x) if leaf is not None]
    if not leaves:
        raise ValueError(f"There is no data to run on: x={x!r}. Pass arrays or a dataset.")
    if leaves[0].shape[0] == 0:
        raise ValueError(
            f"The data is empty: x has shape {tuple(leaves[0].shape)}. Pass at least one sample."
        )
    return int(leaves[0].shape[0])


def check_inputs(model: keras.Model, x: Data) -> None:
    """Raise an error for inputs that the model does not take, before anything is compiled."""
    if not getattr(model, "inputs", None):
        return
    names = keras_bridge.input_names(model) if isinstance(x, dict) else []
    if names:
        is_complete = all(name in x for name in names)
        leaves = [x[name] for name in names] if is_complete else []
    else:
        leaves = keras.tree.flatten(x)
    problem = _problem(model, leaves) if len(leaves) == len(model.inputs) else ""
    if problem is None:
        return
    # Keras adapts some inputs. For a wrong number of inputs, its message is clear.
    error = keras_bridge.refusal(model, x)
    if error is not None:
        raise ValueError(problem) if problem else error


def _problem(model: keras.Model, leaves: list[Data]) -> str | None:
    """Return what seems to be wrong with the shapes of inputs."""
    for tensor, leaf in zip(model.inputs, leaves, strict=True):
        if leaf is not None and not _shape_fits(tensor.shape[1:], leaf.shape[1:]):
            return (
                f"Input {tensor.name!r} received samples of shape {tuple(leaf.shape[1:])}, but "
                f"{model.name!r} expects {tuple(tensor.shape[1:])}. Reshape the data, or make "
                "the model with another keras.Input."
            )
    return None


def first_not_finite(x: Data) -> str | None:
    """Return a description of the first NaN or infinity in the inputs, or `None`."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        if jax.dtypes.issubdtype(leaf.dtype, np.floating):
            where = _first_bad(leaf, lambda part: ~np.isfinite(part))
            if where is not None:
                name = f"Input{jax.tree_util.keystr(path)}" if path else "The input"
                return f"{name} holds NaN or infinity, first in sample {where}."
    return None


def check_targets(model: keras.Model, y: Data) -> None:
    """Raise an error for labels that Keras rejects; warn about labels that are probably wrong."""
    if y is None:
        return
    outputs = keras_bridge.output_structure(model)
    for path, loss in keras_bridge.compiled_losses(model):
        target, output = _at(y, path), _at(outputs, path)
        if target is None or not hasattr(target, "shape"):
            continue
        name = _name(loss)
        if name == SPARSE and hasattr(output, "shape"):
            if len(target.shape) == len(output.shape) and target.shape[-1] == output.shape[-1] > 1:
                raise ValueError(_one_hot(target))
            _check_classes(target, output.shape[-1], getattr(loss, "ignore_class", None))
        elif name in ("categorical_crossentropy", "binary_crossentropy"):
            _check_probabilities(target, name)


def explain_targets(model: keras.Model, y: Data) -> None:
    """Raise a clearer error than Keras if targets are one-hot but the loss takes class numbers."""
    for path, loss in keras_bridge.compiled_losses(model):
        target = _at(y, path)
        shape: tuple[int, ...] = getattr(target, "shape", ())
        if _name(loss) != SPARSE or len(shape) < 2 or shape[-1] < 2:
            continue
        rows = np.asarray(target)
        if np.isin(rows, (0, 1)).all() and (rows.sum(-1) == 1).all():
            raise ValueError(_one_hot(target))


def _name(loss: str | Callable) -> str:
    name = loss if isinstance(loss, str) else getattr(loss, "name", "")
    return name or getattr(loss, "__name__", "")


def _one_hot(target: Data) -> str:
    return (
        f"The labels have shape {tuple(target.shape)}, so they are one-hot, but {SPARSE} takes "
        "class numbers. Use categorical_crossentropy, or the numbers: numpy.argmax(y, -1)."
    )


def _check_classes(target: Data, classes: int | None, ignored: int | None) -> None:
    if classes is None:
        return
    # Without an ignored class this is class 0, which is always in range.
    allowed = 0 if ignored is None else ignored
    bad = _first_bad(target, lambda part: ((part < 0) | (part >= classes)) & (part != allowed))
    if bad is not None:
        label = np.asarray(target[bad]).ravel()[0]
        user_warnings.warn(
            f"Label {label} of sample {bad} is out of range: the model has {classes} classes, so "
            f"sparse_categorical_crossentropy takes labels 0 to {classes - 1}. Renumber the labels "
            "or change the size of the last layer."
        )


def _check_probabilities(target: Data, name: str) -> None:
    bad = _first_bad(target, lambda part: (part < 0) | (part > 1))
    if bad is not None:
        value = np.asarray(target[bad])
        value = value[(value < 0) | (value > 1)].ravel()[0] if value.ndim else value
        advice = (
            "use sparse_categorical_crossentropy for class numbers"
            if name == "categorical_crossentropy"
            else "map the labels to 0 and 1"
        )
        user_warnings.warn(
            f"Target {value} of sample {bad} is out of range: {name} takes values from 0 to 1. "
            f"Did you mean to {advice}?"
        )


def _shape_fits(expected: tuple, received: tuple) -> bool:
    """Compare shapes, with the axis of length one that Keras adds or removes at the end."""
    if len(received) == len(expected) + 1 and received[-1] == 1:
        received = received[:-1]
    elif len(received) == len(expected) - 1 and expected[-1] == 1:
        expected = expected[:-1]
    return len(expected) == len(received) and all(
        e is None or e == r for e, r in zip(expected, received, strict=True)
    )


def _first_bad(array: Data, is_bad: Callable[[np.ndarray], np.ndarray]) -> int | None:
    """Return the first sample in which any value is bad, checking a window at a time."""
    rows = max(1, WINDOW // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        part = np.asarray(array[start : start + rows])
        bad = is_bad(part)
        if bad.any():
            return start + int(np.argmax(bad.reshape(len(part), -1).any(axis=1)))
    return None


def _at(tree: PyTree, path: tuple) -> PyTree:
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return tree
