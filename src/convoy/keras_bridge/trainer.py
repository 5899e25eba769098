"""The methods of `keras.Model` that the engine replaces, and Keras's own versions of them.

They are replaced in the bases of `keras.Model`, below the classes of users:

    MyModel.fit  -- super().fit() -->  keras.Model.fit  --+--> the engine, for a prepared model
                                                          +--> Keras's own method, for any other

An override of `fit` therefore runs as in stock Keras, and its `super().fit()` runs on the engine.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from convoy.keras_bridge.graphs import STATE
from keras import Model
from keras.src.models import cloning
from keras.src.saving.keras_saveable import KerasSaveable

ROUTED = (
    "compile",
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
    "__reduce__",
)
COPY = "copy_to"
"""The name of the method that gives a clone the strategy and options of its original."""
# Stored before anything is replaced, so that the stock methods can still be called.
_stock_clone = cloning.clone_model
_stock = {name: getattr(Model, name) for name in ROUTED}


def route_methods() -> None:
    """Make `keras.Model` call the methods in a model's `ModelState`, if there are any.

    `keras.models.clone_model` is replaced in the same way. Copies and pickles use `__reduce__`.
    """
    for name in ROUTED:
        # Replaced in the class that defines the method: Keras compares these methods to detect
        # overrides.
        owner = next(kind for kind in Model.__mro__ if name in vars(kind))
        setattr(Model if owner is KerasSaveable else owner, name, _routed(name))
    cloning.clone_model = keras.models.clone_model = _clone_model


def _routed(name: str) -> Callable[..., Any]:
    stock = _stock[name]

    @functools.wraps(stock)
    def method(self: Model, *args: Any, **kwargs: Any) -> Any:
        own = _methods_of(self).get(name)
        return stock(self, *args, **kwargs) if own is None else own(*args, **kwargs)

    return method


def _methods_of(model: Model) -> dict[str, Callable[..., Any]]:
    """Return the methods of a model; none if it has no state."""
    state = vars(model).get(STATE)
    return {} if state is None else state.methods


def stock_method(model: Model, name: str) -> Callable[..., Any]:
    """Return one of Keras's own methods, bound to a model."""
    return functools.partial(_stock[name], model)


# Keras has two names for the function, and users import either of them.
@functools.wraps(_stock_clone)
def _clone_model(model: Model, *args: Any, **kwargs: Any) -> Model:
    clone = _stock_clone(model, *args, **kwargs)
    copy_to = _methods_of(model).get(COPY)
    # A clone that is made in a scope belongs to that scope.
    if copy_to is not None and not _methods_of(clone):
        copy_to(clone)
    return clone
