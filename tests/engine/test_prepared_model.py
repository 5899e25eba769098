"""The state of a prepared model, and the graph cached in it."""

import convoy
import keras
import numpy as np
from convoy.engine.prepared_model import PreparedModel
from convoy.keras_bridge import ModelState, model_graph, set_traced_graph, trace


def sequential():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])


def test_a_stock_model_has_state_that_changes_nothing():
    prepared = PreparedModel.of(sequential())
    assert prepared.devices == ()
    assert prepared.numerics.variables == []
    assert prepared.gradient_map is None
    assert prepared.stages is None


def test_the_state_is_found_again_and_keeps_what_was_known_before():
    model = sequential()
    graph = model_graph(model)
    state = ModelState.of(model)
    assert type(state) is ModelState
    prepared = PreparedModel.of(model)
    assert prepared is state  # which others may hold
    assert prepared is PreparedModel.of(model) is ModelState.of(model)
    assert prepared.graph is graph


def test_the_graph_is_walked_once():
    model = sequential()
    assert model_graph(model) is model_graph(model)


def test_a_layer_that_is_added_or_removed_changes_the_graph():
    model = sequential()
    first = model_graph(model)
    model.add(keras.layers.Dense(2))
    longer = model_graph(model)
    assert len(longer.calls) == len(first.calls) + 1
    model.pop()
    assert len(model_graph(model).calls) == len(first.calls)


def test_a_layer_that_is_added_to_a_nested_model_changes_the_graph():
    nested = sequential()
    inputs = keras.Input((2,))
    model = keras.Model(inputs, nested(inputs))
    before = len(model_graph(model).nested_calls)
    nested.add(keras.layers.Dense(2))
    assert len(model_graph(model).nested_calls) == before + 1


def test_a_trace_gives_a_subclassed_model_a_graph():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    model = Model()
    model(np.zeros((1, 2), np.float32))
    assert model_graph(model) is None
    trace(model, keras.KerasTensor((None, 2)))
    assert [call.name for call in model_graph(model).calls] == [model.dense.name]
    set_traced_graph(model, None)
    assert model_graph(model) is None


def test_a_clone_keeps_its_stages_and_a_saved_model_comes_back_without_them(tmp_path):
    with convoy.Strategy(devices=1).scope():
        model = sequential()
    PreparedModel.of(model).stages = [0, 1]
    model.save(tmp_path / "model.keras")
    clone = PreparedModel.of(keras.models.clone_model(model))
    assert clone is not PreparedModel.of(model)
    assert clone.stages == [0, 1]
    assert clone.devices == PreparedModel.of(model).devices
    loaded = PreparedModel.of(keras.saving.load_model(tmp_path / "model.keras"))
    assert loaded.stages is None
    assert loaded.devices == ()
