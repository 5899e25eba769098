"""Creation, building and compilation of models.

Keras has no hook for the creation of a model, and no public method that builds everything that a
compiled model needs (`_symbolic_build` is what `fit` calls).
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
from keras import Model
from keras.src.backend import compute_output_spec
from keras.src.models.functional import Functional

# Scopes may be open in several threads; `Model.__new__` is restored when the last one ends.
_scopes: list[Callable[[Model], None]] = []
_scopes_change = threading.Lock()
_plain_new = Model.__dict__["__new__"]


@contextlib.contextmanager
def adopt_new_models(adopt: Callable[[Model], None]) -> Iterator[None]:
    """Call `adopt` on every `keras.Model` created in the block, before its `__init__` runs.

    `Model.__new__` is replaced while any thread is in such a block, and restored after the last.
    """

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        model = _plain_new.__func__(cls, *args, **kwargs)
        # `keras.Model(inputs, outputs)` gets here twice: Keras's `__new__` creates a `Functional`.
        if type(model) is cls:
            adopt(model)
        return model

    with _scopes_change:
        _scopes.append(adopt)
        Model.__new__ = staticmethod(new)
    try:
        yield
    finally:
        with _scopes_change:
            _scopes.remove(adopt)
            if not _scopes:
                Model.__new__ = _plain_new


def overrides_call(model: Model) -> bool:
    """Return whether the class of a functional or sequential model overrides `call`."""
    plain = keras.Sequential if isinstance(model, keras.Sequential) else Functional
    return isinstance(model, plain) and type(model).call is not plain.call


def policies(model: Model) -> set[str]:
    """Return the names of the dtype policies of a model's layers."""
    layers = [
        layer
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, (Model, keras.layers.InputLayer))
    ]
    return {layer.dtype_policy.name for layer in layers or [model]}


def call_training_argument(model: Model, training: bool) -> dict[str, bool]:
    """Return the argument `training` of a model's `call`, if it takes one."""
    # Keras reads this from the signature when the model is created.
    return {"training": training} if model._call_has_training_arg else {}


def input_names(model: Model) -> list[str]:
    """Return the key of every input in a dict of inputs.

    It is the key in the dict that the model was made with, else the name of the tensor. The result
    is empty if that dict is nested, because inputs then have no single key.
    """
    # A sequential model keeps its graph in `_functional`; only the graph has the structure.
    structure = getattr(getattr(model, "_functional", None) or model, "_inputs_struct", None)
    if not isinstance(structure, dict):
        return [tensor.name for tensor in model.inputs]
    keys = {id(tensor): key for key, tensor in structure.items()}
    found = [keys.get(id(tensor)) for tensor in model.inputs]
    return [key for key in found if key is not None] if None not in found else []


def refusal(model: Model, x: Any) -> Exception | None:
    """Return the error that Keras raises for inputs of these shapes, or `None` if it accepts them.

    Keras adapts some inputs, for example by adding a missing axis.
    """
    # Shapes are sufficient: `compute_output_spec` traces the call without computing it.
    symbolic = keras.tree.map_structure(_as_on_device, x)
    try:
        with warnings.catch_warnings(action="ignore"):  # Keras will warn when the model runs
            compute_output_spec(model, symbolic, **call_training_argument(model, training=False))
    except Exception as error:
        return error
    return None


def compilation(model: Model) -> object | None:
    """Return an object that `model.compile` replaces: the metric of the loss."""
    return model._loss_tracker


def layers_are_built(model: Model) -> bool:
    """Return whether every layer of a model has created its variables."""
    return all(layer.built for layer in model._flatten_layers())


def build_for_prediction(model: Model, x: Any) -> None:
    """Create the variables of a model that has not been called yet."""
    if not layers_are_built(model):
        with keras.StatelessScope():
            model(x)


def build_for_batch(model: Model, batch: Any, explain: Callable[[], None] | None = None) -> None:
    """Create the missing variables of model, metrics, loss and optimizer.

    Args:
        model: compiled model.
        batch: inputs, targets and sample weights; `None` if only the optimizer is missing.
        explain: function that is called if Keras rejects the batch; it may raise a clearer error.
    """
    try:
        with warnings.catch_warnings():
            # Keras repeats it when the step is traced, on replicas with the shapes of their shards.
            warnings.filterwarnings("ignore", message="The structure of `inputs` doesn't match")
            model._symbolic_build(data_batch=keras.tree.map_structure(_as_on_device, batch))
    except ValueError:
        if explain is not None:
            explain()
        raise


def _as_on_device(leaf: Any) -> Any:
    """Return the shape and dtype of an array on a device; JAX converts 64-bit types to 32 bits.

    Passing the 64-bit type itself would make JAX warn.
    """
    if not hasattr(leaf, "dtype"):
        return leaf
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    if dtype.endswith("64"):
        dtype = jax.dtypes.canonicalize_dtype(dtype).name
    return keras.KerasTensor(leaf.shape, dtype)
