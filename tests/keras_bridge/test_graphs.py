"""Graphs of functional models."""

import keras
import numpy as np
from convoy import keras_bridge
from convoy.keras_bridge import ModelState


def test_a_graph_is_replayed_on_other_inputs_with_layers_replaced(rng):
    layers = keras.layers
    shared, norm = layers.Dense(3), layers.BatchNormalization()
    x = keras.Input((3,))
    model = keras.Model(x, layers.Add()([shared(norm(shared(x))), x]))
    other = keras.Input((3,))
    doubled = layers.Rescaling(2.0)(other)
    seen = []

    def replace(layer):
        seen.append(layer)
        return layers.GroupNormalization(1) if layer is norm else layer

    outputs = keras_bridge.replay_graph(model, doubled, replace)
    again = keras.Model(other, outputs)
    assert seen.count(shared) == 1
    data = rng.random((2, 3), "float32")
    twice = 2 * data
    group = next(layer for layer in again.layers if isinstance(layer, layers.GroupNormalization))
    expected = shared(group(shared(twice))) + twice
    np.testing.assert_allclose(again(data), expected, rtol=1e-6)


def test_a_layer_forgets_the_losses_that_it_has_added():
    layer = keras.layers.ActivityRegularization(l2=1.0)
    with keras.StatelessScope(collect_losses=True) as scope:
        layer(np.ones((1, 2), "float32"))
        assert len(scope.losses) == 1
        keras_bridge.clear_losses([layer])
        assert scope.losses == []


def test_calls_come_in_an_order_that_they_can_run_in():
    layers = keras.layers
    x = keras.Input((3,))
    first = layers.Dense(3, name="first")(x)
    model = keras.Model(x, layers.Add(name="sum")([first, layers.ReLU(name="relu")(first)]))
    calls = keras_bridge.graph_calls(model)
    assert [call.name for call in calls] == ["first", "relu", "sum"]
    known = set(keras_bridge.graph_inputs(model))
    for call in calls:
        assert set(call.inputs) <= known
        known |= set(call.outputs)
    assert set(keras_bridge.graph_outputs(model)) <= known


def test_a_nested_model_is_taken_apart_on_request():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, name="one")], name="inner")
    model = keras.Sequential([keras.Input((3,)), inner, keras.layers.ReLU(name="two")])
    assert [call.name for call in keras_bridge.graph_calls(model)] == ["inner", "two"]
    names = [call.name for call in keras_bridge.graph_calls(model, into_nested=True)]
    assert names == ["inner/one", "two"]


def test_calls_and_layers_are_marked_in_the_block_alone():
    stage = None
    with keras_bridge.marked_calls(lambda: stage):
        x = keras.Input((3,))
        stage = 1
        y = keras.layers.Dense(3)(x)
    model = keras.Model(x, keras.layers.ReLU()(y))
    assert [call.mark for call in keras_bridge.graph_calls(model)] == [1, None]
    assert keras_bridge.has_marked_layers(model)


def test_equal_layers_have_equal_settings():
    x = keras.Input((3,))
    y = keras.layers.Dense(3)(keras.layers.Dense(3)(x))
    first, second, third = keras_bridge.graph_calls(keras.Model(x, keras.layers.Dense(2)(y)))
    assert first.settings == second.settings != third.settings


def test_a_model_runs_its_graph_by_another_function(rng):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    data, seen = rng.random((2, 3), "float32"), []

    def run(tensors, wrap):
        for call in keras_bridge.graph_calls(model):
            seen.append(call.name)
            call.run(tensors, wrap)

    expected = model(data)
    with keras_bridge.replaced_graph_run(model, run):
        np.testing.assert_array_equal(model(data), expected)
    assert seen == [model.layers[0].name]


class MoreState(ModelState):
    """State with one more attribute."""

    def __init__(self):
        super().__init__()
        self.more = 1


def test_a_model_has_one_state(model):
    assert ModelState.of(model) is ModelState.of(model)


def test_a_further_class_of_state_takes_over_what_is_there(model):
    graph = object()
    ModelState.of(model).graph = graph
    state = MoreState.of(model)
    assert (state.graph, state.more) == (graph, 1)
    assert ModelState.of(model) is state


def test_keras_neither_tracks_nor_saves_it(model, tmp_path):
    before = len(model._flatten_layers()), len(model.variables)
    ModelState.of(model).graph = keras.layers.Dense(1)
    assert (len(model._flatten_layers()), len(model.variables)) == before
    model.save(tmp_path / "model.keras")
    assert "_convoy" not in vars(keras.models.load_model(tmp_path / "model.keras"))
