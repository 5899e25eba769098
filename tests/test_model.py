"""Models on the engine: what they gain, and what stays as in stock Keras."""

import convoy
import keras
import numpy as np
import pytest
from convoy.engine.prepared_model import PreparedModel
from convoy.trainer.options import OptionMethods


def sequential():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])


@pytest.fixture
def model():
    with convoy.Strategy(devices=2).scope():
        return sequential()


def test_a_prepared_model_gains_methods_and_keeps_its_class(model):
    stock = sequential()
    assert type(model) is type(stock)
    gained = set(vars(model)) - set(vars(stock))
    assert {*OptionMethods.added, "export_for_serving"} <= gained
    assert not hasattr(stock, "set_gradient_accumulation")


def test_keras_does_not_track_what_a_model_gains(model):
    keras.backend.clear_session(free_memory=False)
    stock = sequential()
    assert model.get_config() == stock.get_config()
    assert [v.path for v in model.variables] == [v.path for v in stock.variables]


def test_automatic_steps_are_no_part_of_the_compilation(model):
    model.compile("sgd", "mse", steps_per_execution="auto")
    assert model.steps_per_execution == 1
    model.compile("sgd", "mse", steps_per_execution=7)
    assert model.steps_per_execution == 7
    with pytest.raises(ValueError, match="steps_per_execution=0"):
        model.compile("sgd", "mse", steps_per_execution=0)


def test_stages_are_assigned_read_and_reset(model):
    assert model.get_pipeline_stage_assignment() is None
    model.set_pipeline_stage_assignment([0, 1])
    assert model.get_pipeline_stage_assignment() == [0, 1]
    model.reset_pipeline_stage_assignment()
    assert model.get_pipeline_stage_assignment() is None


def test_a_saved_model_loads_as_a_plain_keras_model(model, tmp_path):
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert PreparedModel.of(loaded).devices == ()
    for own, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(own.numpy(), other.numpy())
