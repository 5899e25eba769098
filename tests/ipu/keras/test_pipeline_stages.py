import contextlib

import keras
import numpy as np
import pytest
from convoy import ipu

Functional = ipu.keras.FunctionalLayerPipelineStageAssignment
Sequential = ipu.keras.SequentialLayerPipelineStageAssignment


def sequential(*, built=True):
    layers = [keras.layers.Dense(2, name=name) for name in "abc"]
    with ipu.ipu_strategy.IPUStrategy().scope():
        return keras.Sequential([keras.Input((2,)), *layers] if built else layers)


def functional():
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((2,))
        first = keras.layers.Dense(2, name="first")
        left, right = first(inputs), keras.layers.Dense(2, name="right")(inputs)
        return keras.Model(inputs, keras.layers.Add(name="add")([first(left), right]))


@pytest.mark.parametrize("built", [True, False])
def test_a_sequential_model_takes_numbers(built):
    model = sequential(built=built)
    assert [entry.pipeline_stage for entry in model.get_pipeline_stage_assignment()] == [None] * 3
    model.set_pipeline_stage_assignment([0, 0, 1])
    found = model.get_pipeline_stage_assignment()
    assert found == [
        Sequential(layer, stage) for layer, stage in zip(model.layers, [0, 0, 1], strict=True)
    ]
    model.reset_pipeline_stage_assignment()
    assert model.get_pipeline_stage_assignment()[2].pipeline_stage is None


def test_layers_of_nested_models_stand_among_the_others():
    with ipu.ipu_strategy.IPUStrategy().scope():
        inner = keras.Sequential([keras.Input((2,)), *map(keras.layers.Dense, (2, 2))])
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), inner])
    model.set_pipeline_stage_assignment([0, 0, 1])
    found = model.get_pipeline_stage_assignment()
    assert [entry.layer for entry in found] == [model.layers[0], *inner.layers]
    assert [entry.pipeline_stage for entry in found] == [0, 0, 1]


def test_a_functional_model_takes_an_object_for_every_call():
    model = functional()
    found = model.get_pipeline_stage_assignment()
    assert sorted((entry.layer.name, entry.node_index) for entry in found) == [
        ("add", 0),
        ("first", 0),
        ("first", 1),
        ("right", 0),
    ]
    assert found[-1].layer.name == "add"
    assert {layer.name for layer in found[-1].inbound_layers} == {"first", "right"}
    for entry in found:
        entry.pipeline_stage = int(entry.layer.name == "add")
    model.set_pipeline_stage_assignment(found)
    stages = [entry.pipeline_stage for entry in model.get_pipeline_stage_assignment()]
    assert stages == [0, 0, 0, 1]


def with_stages(model, stages):
    found = model.get_pipeline_stage_assignment()
    for entry, stage in zip(found, stages, strict=True):
        entry.pipeline_stage = stage
    return found


@pytest.mark.parametrize(
    ("make", "given", "match"),
    [
        (sequential, (0, 0, 1), "is of type tuple. Pass a list"),
        (sequential, [0, 1], "2 stages were given for the 3 layers"),
        (sequential, [0, 1, "1"], "an int or a SequentialLayer"),
        (sequential, [1, 1, 1], "'a' has stage 1. Pass 0:"),
        (sequential, [0, 0, 2], "'c' has stage 2. Pass 0 or 1:"),
        (sequential, [0, 1, 0], "'c' has stage 0. Pass 1 or 2:"),
        (sequential, [0, 0, 0], "All layers are in stage 0"),
        (functional, [0, 0, 0, 1], "Pass a FunctionalLayerPipelineStageAssignment"),
        (functional, [], "0 stages were given for the 4 layers"),
    ],
)
def test_refuses_assignments_that_cannot_be(make, given, match):
    with pytest.raises(ValueError, match=match):
        make().set_pipeline_stage_assignment(given)


def test_refuses_objects_that_are_not_the_models():
    model = functional()
    with pytest.raises(ValueError, match="has no stage"):
        model.set_pipeline_stage_assignment(with_stages(model, [0, 0, None, 1]))
    with pytest.raises(ValueError, match="Keep the order"):
        model.set_pipeline_stage_assignment(with_stages(model, [0, 0, 0, 1])[::-1])
    with pytest.raises(ValueError, match="can only feed the same or a later one"):
        model.set_pipeline_stage_assignment(with_stages(model, [1, 1, 1, 0]))


def test_refuses_calls_of_a_layer_in_another_order():
    model = functional()
    found = with_stages(model, [0, 0, 0, 1])
    first, second = (n for n, entry in enumerate(found) if entry.layer.name == "first")
    found[first], found[second] = found[second], found[first]
    with pytest.raises(ValueError, match="Call 1 of 'first' was passed where its call 0 runs"):
        model.set_pipeline_stage_assignment(found)


@pytest.mark.parametrize(
    ("stages", "match"),
    [([0, 0, 0, 2], "Stage 1 has no layer"), ([-1, 0, 0, 0], "Number stages from 0")],
)
def test_stages_are_numbered_from_0_without_a_gap(stages, match):
    model = functional()
    with pytest.raises(ValueError, match=match):
        model.set_pipeline_stage_assignment(with_stages(model, stages))


def test_what_is_changed_in_a_list_holds_when_it_is_set():
    model = sequential()
    model.set_pipeline_stage_assignment([0, 0, 1])
    model.get_pipeline_stage_assignment().pop()
    assert [entry.pipeline_stage for entry in model.get_pipeline_stage_assignment()] == [0, 0, 1]


def test_prints_a_table():
    lines = []
    model = sequential()
    model.set_pipeline_stage_assignment([0, 1, 1])
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert lines[1] == "_" * 60
    assert lines[4].split() == ["a", "(Dense)", "0"]
    functional().print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert lines[-1] == "_" * 89
    assert lines[-2].split() == ["add", "(Add)", "(0)", "first,", "right", "None"]
    functional().print_pipeline_stage_assignment_summary(line_length=70, print_fn=lines.append)
    assert lines[-1] == "_" * 70


def test_stages_are_given_inside_of_an_ipu_strategy_only():
    with pytest.raises(RuntimeError, match="outside of an IPUStrategy"), ipu.keras.PipelineStage(0):
        pass
    with (
        ipu.distributed.popdist_strategy.PopDistStrategy().scope(),
        pytest.raises(RuntimeError, match="inside of a PopDistStrategy"),
        ipu.keras.PipelineStage(0),
    ):
        pass
    with (
        ipu.ipu_strategy.IPUStrategy().scope(),
        ipu.keras.PipelineStage(0),
        pytest.raises(RuntimeError, match="is inside of PipelineStage"),
        ipu.keras.PipelineStage(1),
    ):
        pass
    with pytest.raises(ValueError, match="number stages from 0"):
        ipu.keras.PipelineStage(-1)


def staged(*, whole=True):
    """Build a model with two calls in one block, and one in another that comes again."""
    inputs = keras.Input((2,))
    with ipu.keras.PipelineStage(0):
        x = keras.layers.Dense(2)(inputs)
    with ipu.keras.PipelineStage(0):
        x = keras.layers.Dense(2)(x)
    with ipu.keras.PipelineStage(1) if whole else contextlib.nullcontext():
        x = keras.layers.Dense(2, name="last")(x)
    return keras.Model(inputs, x)


def stages_of(model):
    return [entry.pipeline_stage for entry in model.get_pipeline_stage_assignment()]


def test_a_block_may_come_again():
    with ipu.ipu_strategy.IPUStrategy().scope():
        assert stages_of(staged()) == [0, 0, 1]


def test_all_layers_have_a_stage_or_none():
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = staged(whole=False)
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match="'last' has no stage, but others have"):
            model.fit(np.zeros((4, 2)), np.zeros((4, 2)), batch_size=2, verbose=0)


def test_a_nested_model_brings_its_stages():
    with ipu.ipu_strategy.IPUStrategy().scope():
        inputs = keras.Input((2,))
        assert stages_of(keras.Model(inputs, staged()(inputs))) == [0, 0, 1]


def test_layers_of_a_sequential_model_bring_their_stages():
    with ipu.ipu_strategy.IPUStrategy().scope():
        with ipu.keras.PipelineStage(0):
            first = keras.layers.Dense(2)
        with ipu.keras.PipelineStage(1):
            second = keras.layers.Dense(2)
        assert stages_of(keras.Sequential([keras.Input((2,)), first, second])) == [0, 1]
