"""Methods of `keras.Model` that a model's state replaces, below the classes of users."""

import keras
import pytest
from convoy import keras_bridge
from convoy.keras_bridge.trainer import ROUTED
from keras.src.models import cloning


def give(model, **methods):
    """Give a model methods of its own, as a strategy does."""
    keras_bridge.ModelState.of(model).methods = methods
    return model


def small(kind=keras.Sequential):
    return kind([keras.Input((2,)), keras.layers.Dense(1)])


@pytest.mark.parametrize("name", [name for name in ROUTED if name != "__reduce__"])
def test_a_method_of_the_state_runs_in_place_of_kerass(name):
    model = give(small(), **{name: lambda *args, **kwargs: (args, kwargs)})
    assert getattr(model, name)(1, key=2) == ((1,), {"key": 2})


def test_an_override_runs_first_and_reaches_the_state_by_super():
    class Own(keras.Sequential):
        def fit(self, x):
            return "own", super().fit(x)

    model = give(small(Own), fit=lambda x: f"engine {x}")
    assert model.fit(3) == ("own", "engine 3")


def test_a_model_without_a_state_runs_in_keras():
    model = small()
    model.compile("sgd", "mse")
    assert model.compiled
    with pytest.raises(TypeError):
        model.fit(no_such_argument=1)


def test_replaced_methods_look_like_kerass():
    for name in ROUTED:
        method, stock = getattr(keras.Model, name), keras_bridge.stock_method(small(), name).func
        assert method is not stock
        assert (method.__name__, method.__doc__) == (stock.__name__, stock.__doc__)


def test_stock_methods_pass_by_the_state():
    model = give(small(), compile=lambda *_: pytest.fail("the state's method was called"))
    keras_bridge.stock_method(model, "compile")("sgd", "mse")
    assert model.compiled


@pytest.mark.parametrize("clone", [keras.models.clone_model, cloning.clone_model])
def test_a_clone_is_passed_to_its_original_by_either_name_of_the_function(clone):
    clones = []
    model = give(small(), **{keras_bridge.COPY: clones.append})
    assert [clone(model)] == clones


def test_a_clone_that_has_a_state_keeps_it(monkeypatch):
    clones = []
    model = give(small(), **{keras_bridge.COPY: clones.append})
    stock = cloning.clone_model.__wrapped__
    in_scope = give(stock(model), fit=lambda: None)
    monkeypatch.setattr("convoy.keras_bridge.trainer._stock_clone", lambda _: in_scope)
    assert keras.models.clone_model(model) is in_scope
    assert clones == []
