"""Options of one model, which its copies take over."""

import convoy
import keras
import pytest
from convoy.pipeline.config import PipelineConfig
from convoy.trainer.options import ModelOptions

DEFAULTS = ModelOptions(
    gradient_accumulation=1,
    reduction="mean",
    dtype=None,
    asynchronous_callbacks=False,
    pipelining=PipelineConfig(),
    stages=None,
    deferred_split=None,
)


@pytest.fixture
def model():
    with convoy.Strategy(devices=1).scope():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])


def options_of(model):
    return model.set_gradient_accumulation.__self__.options()


def test_the_options_of_a_new_model_are_those_of_its_strategy(model):
    assert options_of(model) == DEFAULTS


def test_options_are_set_for_one_model(model):
    model.set_gradient_accumulation(4, reduction="sum", dtype="float32")
    model.set_asynchronous_callbacks(True)
    model.set_pipelining_options(schedule="gpipe", activation_checkpointing=True)
    model.set_pipeline_stage_assignment([0, 1])
    assert options_of(model) == DEFAULTS._replace(
        gradient_accumulation=4,
        reduction="sum",
        dtype="float32",
        asynchronous_callbacks=True,
        pipelining=PipelineConfig("gpipe", activation_checkpointing=True),
        stages=[0, 1],
    )


def test_a_copy_takes_over_options(model):
    model.set_pipelining_options(gradient_accumulation=3, device_mapping=[0, 0])
    model.set_pipeline_stage_assignment([0, 1])
    clone = keras.models.clone_model(model)
    assert options_of(clone) == options_of(model)
    clone.set_gradient_accumulation(1)
    assert options_of(model).gradient_accumulation == 3


def test_a_value_that_cannot_be_met_changes_nothing(model):
    with pytest.raises(ValueError, match="gradient_accumulation=0"):
        model.set_gradient_accumulation(0)
    assert options_of(model).gradient_accumulation == 1
