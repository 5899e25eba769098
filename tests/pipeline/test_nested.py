"""Models inside of models are cut like any other part."""

import convoy
import keras
import pytest
from convoy.pipeline.split import split_by_name
from convoy.pipeline.stages import calls_of, stage_assignment
from keras import layers

pytestmark = pytest.mark.integration


def inner(name="inner"):
    x = inputs = keras.Input((4,))
    x = layers.Dense(4, name="one")(x)
    return keras.Model(inputs, layers.Dense(4, name="two")(x), name=name)


def outer(nested):
    x = inputs = keras.Input((4,))
    x = nested(layers.Dense(4, name="first")(x))
    return keras.Model(inputs, layers.Dense(4, name="last")(x))


def names(model):
    return [call.name for call in calls_of(model)]


def test_its_layers_are_named_after_it():
    assert names(outer(inner())) == ["first", "inner/one", "inner/two", "last"]


def test_models_in_nested_models_too():
    model = outer(keras.Sequential([keras.Input((4,)), inner("deep")], name="middle"))
    assert names(model) == ["first", "middle/deep/one", "middle/deep/two", "last"]


@pytest.mark.parametrize(("name", "stages"), [("inner/two", [0, 0, 1, 1]), ("inner", [0, 1, 1, 1])])
def test_a_stage_begins_inside_of_it_or_with_it(name, stages):
    assert split_by_name(outer(inner()), [name]) == stages


def test_one_that_is_called_twice_has_tensors_of_its_own_each_time():
    nested = inner()
    inputs = keras.Input((4,))
    model = keras.Model(inputs, nested(nested(inputs)))
    calls = calls_of(model)
    assert [call.name for call in calls] == ["inner/one", "inner/two"] * 2
    assert len({tensor for call in calls for tensor in call.outputs}) == 4
    assert calls[2].inputs == calls[1].outputs


def test_one_that_passes_an_input_on_stays_whole():
    inputs = keras.Input((4,))
    nested = keras.Model(inputs, [inputs, layers.Dense(4)(inputs)], name="whole")
    x = keras.Input((4,))
    assert names(keras.Model(x, nested(x))) == ["whole"]


def test_a_subclass_with_a_call_of_its_own_stays_whole():
    class Twice(keras.Model):
        def call(self, inputs, **kwargs):
            return 2 * super().call(inputs, **kwargs)

    x = inputs = keras.Input((4,))
    nested = Twice(inputs, layers.Dense(4)(x), name="twice")
    assert names(outer(nested)) == ["first", "twice", "last"]


def test_the_stage_of_its_call_counts_more_than_those_inside():
    with convoy.PipelineStage(0):
        inputs = keras.Input((4,))
        x = layers.Dense(4)(inputs)
    with convoy.PipelineStage(1):
        nested = keras.Model(inputs, layers.Dense(4)(x))
    source = keras.Input((4,))
    with convoy.PipelineStage(0):
        first = layers.Dense(4)(source)
    assert stage_assignment(keras.Model(source, nested(first))) == [0, 0, 1]
    with convoy.PipelineStage(1):
        whole = nested(first)
    assert stage_assignment(keras.Model(source, whole)) == [0, 1, 1]
