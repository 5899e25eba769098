import threading

import convoy
import keras
import pytest
from convoy.pipeline.stages import stage_assignment
from keras import layers


def stages(build):
    inputs = keras.Input((4,))
    return stage_assignment(keras.Model(inputs, build(inputs)))


def test_layers_called_in_a_block_are_of_its_stage():
    def build(x):
        with convoy.PipelineStage(0):
            x = layers.Dense(4)(x)
        with convoy.PipelineStage(1):
            return layers.Dense(4)(layers.ReLU()(x))

    assert stages(build) == [0, 1, 1]


def test_a_layer_made_in_a_block_takes_its_stage_along():
    def build(x):
        with convoy.PipelineStage(1):
            second = layers.Dense(4)
        with convoy.PipelineStage(0):
            first = layers.Dense(4)
        return second(first(x))

    assert stages(build) == [0, 1]


def test_the_call_counts_more_than_the_layer():
    def build(x):
        with convoy.PipelineStage(0):
            layer = layers.Dense(4)
            x = layer(x)
        with convoy.PipelineStage(1):
            return layer(x)

    assert stages(build) == [0, 1]


def test_a_layer_without_a_stage_among_others_is_named():
    def build(x):
        x = layers.Dense(4, name="lost")(x)
        with convoy.PipelineStage(1):
            return layers.Dense(4)(x)

    with pytest.raises(ValueError, match="'lost' has no stage, but others have"):
        stages(build)


def test_a_stage_that_feeds_an_earlier_one_is_refused():
    def build(x):
        with convoy.PipelineStage(1):
            x = layers.Dense(4, name="late")(x)
        with convoy.PipelineStage(0):
            return layers.Dense(4, name="early")(x)

    with pytest.raises(
        ValueError, match="'early' of stage 0 reads the output of 'late' of stage 1"
    ):
        stages(build)


@pytest.mark.parametrize("stage", [-1, 0.5, True])
def test_a_stage_that_is_not_a_number_is_refused(stage):
    with pytest.raises(ValueError, match="number stages from 0"):
        convoy.PipelineStage(stage)


def test_blocks_cannot_be_nested():
    with (
        pytest.raises(RuntimeError, match=r"PipelineStage\(1\) is inside of PipelineStage\(0\)"),
        convoy.PipelineStage(0),
        convoy.PipelineStage(1),
    ):
        pass


def test_without_blocks_there_are_no_stages():
    assert stages(lambda x: layers.Dense(4)(x)) is None


def test_a_block_holds_for_its_own_thread():
    found = []
    with convoy.PipelineStage(0):
        thread = threading.Thread(target=lambda: found.append(stages(layers.Dense(4))))
        thread.start()
        thread.join()
    assert found == [None]


def test_leaves_no_trace_in_keras():
    from keras.src.ops.node import Node

    before = Node.__dict__["__init__"], keras.Operation.__dict__["__new__"]
    with convoy.PipelineStage(0):
        layers.Dense(2)
    assert (Node.__dict__["__init__"], keras.Operation.__dict__["__new__"]) == before
