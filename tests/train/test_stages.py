"""The stages of a run's model, by `--pipeline-splits` and `--device-mapping`."""

import keras
import pytest
from convoy.pipeline.config import PipelineConfig
from convoy.train.flags import Options
from convoy.train.run_settings import make_run_settings
from convoy.train.stages import split_into_stages
from convoy.train.training import training_strategy


def split_model(**options):
    settings = make_run_settings(Options(dataset="digits", **options))
    with training_strategy(settings).scope():
        layers = [keras.layers.Dense(4, name=name) for name in ("one", "two", "three")]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile("sgd", "mse")
    split_into_stages(model, settings, micro_batch=2)
    return model


def test_a_named_layer_begins_the_next_stage():
    model = split_model(pipeline_splits=["two"])
    assert model.get_pipeline_stage_assignment() == [0, 1, 1]


def test_stages_run_as_the_options_say():
    model = split_model(
        pipeline_splits=["two", "three"],
        device_mapping=[0, 1, 0],
        pipeline_schedule="sequential",
        activation_checkpointing=True,
    )
    assert model.get_pipeline_stage_assignment() == [0, 1, 2]
    options = model.set_pipelining_options.__self__.options()
    assert options.pipelining == PipelineConfig(
        "sequential", (0, 1, 0), activation_checkpointing=True
    )


def test_a_model_is_not_split_if_its_stages_are_on_one_device():
    model = split_model(pipeline_splits=["two"], device_mapping=[0, 0])
    assert model.get_pipeline_stage_assignment() is None


def test_the_layers_are_checked_also_on_one_device():
    with pytest.raises(ValueError, match="tow"):
        split_model(pipeline_splits=["tow"], device_mapping=[0, 0])


def test_a_number_of_stages_splits_by_the_costs_of_layers():
    stages = split_model(pipeline_splits=["auto", "2"]).get_pipeline_stage_assignment()
    assert sorted(set(stages)) == [0, 1]
    assert stages == sorted(stages)
