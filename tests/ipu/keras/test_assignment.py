import keras
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
        (sequential, (0, 0, 1), "is a list, but received tuple"),
        (sequential, [0, 1], "2 stages were given for the 3 layers"),
        (sequential, [0, 1, "1"], "an int or a SequentialLayer"),
        (sequential, [1, 1, 1], "'a' has stage 1, but can only be in stage 0"),
        (sequential, [0, 0, 2], "'c' has stage 2, but can only be in stage 0 or 1"),
        (sequential, [0, 1, 0], "'c' has stage 0, but can only be in stage 1 or 2"),
        (sequential, [0, 0, 0], "All layers are in stage 0"),
        (functional, [0, 0, 0, 1], "Pass a FunctionalLayerPipelineStageAssignment"),
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


def test_prints_a_table():
    lines = []
    model = sequential()
    model.set_pipeline_stage_assignment([0, 1, 1])
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert lines[1] == "_" * 60
    assert lines[4].split() == ["a", "(Dense)", "0"]
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
