"""A model's stages and graph, as far as a run looks at them."""

import convoy
import keras
import numpy as np
import pytest
from convoy.engine.prepared_model import PreparedModel
from convoy.pipeline import pipeline_stage

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


class Staged(keras.Model):
    """A model whose `call` is the first to enter a block."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(3), keras.layers.Dense(1)

    def call(self, x):
        with convoy.PipelineStage(0):
            x = self.first(x)
        with convoy.PipelineStage(1):
            return self.second(x)


@pytest.fixture(autouse=True)
def no_block_was_entered(monkeypatch):
    monkeypatch.setattr(pipeline_stage, "entered_blocks", 0)


def fit(model):
    model.compile("sgd", "mse")
    return model.fit(X, Y, batch_size=2, verbose=0)


def test_stages_of_a_model_that_is_not_built_are_found():
    with convoy.Strategy(devices=2).scope():
        model = Staged()
    fit(model)
    assert model.get_pipeline_stage_assignment() == [0, 1]


def test_the_graph_of_a_built_model_is_not_walked_if_there_are_no_stages():
    with convoy.Strategy(devices=1).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    fit(model)
    assert PreparedModel.of(model).graph is None


def test_assigned_stages_need_no_block():
    with convoy.Strategy(devices=2).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.set_pipeline_stage_assignment([0, 1])
    fit(model)
    assert PreparedModel.of(model).graph is not None
    assert model.get_pipeline_stage_assignment() == [0, 1]
