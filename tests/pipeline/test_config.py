"""Options of a pipeline, and the devices that follow from them."""

import convoy
import jax
import keras
import pytest
from convoy.engine.chunk_runner import ModelRunner
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER
from convoy.pipeline import Schedule, generate
from convoy.pipeline.config import PipelineConfig, pipeline_placement
from convoy.pipeline.runner.inference import InferenceRunner
from convoy.pipeline.runner.training import TrainingRunner
from keras import layers


def network(devices=4):
    with convoy.Strategy(devices=devices).scope():
        parts = [keras.Input((4,)), *(layers.Dense(4, name=name) for name in "abc")]
        model = keras.Sequential(parts, name="net")
        model.compile("sgd", "mse")
    return convoy.split(model, ["b", "c"])


def placed(model, pipeline=PipelineConfig()):  # noqa: B008 - it is frozen
    return pipeline_placement(model, pipeline, config_of(model))


def config_of(model) -> ExecutionConfig:
    return model.set_gradient_accumulation.__self__.engine_model.host_loop.config


@pytest.mark.parametrize("name", ["1f1b", "Interleaved", "zero_bubble"])
def test_a_schedule_is_known_by_any_spelling_of_its_name(name):
    assert PipelineConfig(name).schedule_for(network(), 4) == generate(name, 3, 4)


def test_an_unknown_name_is_rejected_at_once():
    with pytest.raises(ValueError, match=r"schedule='ring' is unknown\. Pass one of sequential"):
        PipelineConfig("ring")


def test_a_schedule_of_ones_own_must_fit_the_model():
    own = PipelineConfig(Schedule.from_csv("0F0,0B0\n1F0,1B0\n"))
    assert own.devices_per_replica(network()) == 2
    with pytest.raises(ValueError, match=r"for 2 stages and 1 micro-batches, but the model has 3"):
        own.schedule_for(network(), 1)


def test_devices_are_divided_into_replicas_and_data_goes_to_its_readers():
    placement = placed(network())
    assert placement.rows == [tuple(jax.devices()[:3])]
    assert placement.readers == (0, 2)  # the inputs and the targets
    two = placed(network(), PipelineConfig(device_mapping=(0, 1, 0)))
    assert two.rows == [tuple(jax.devices()[:2]), tuple(jax.devices()[2:])]
    assert two.readers == (0,)


def test_too_few_devices_are_rejected_with_the_layer_that_has_none():
    with pytest.raises(ValueError, match=r"on 3 devices, but the strategy has 2.* layer 'c'"):
        placed(network(devices=2))


def test_a_mapping_without_a_device_for_a_stage_is_rejected():
    with pytest.raises(ValueError, match=r"none is for stage 2, which begins with layer 'c'"):
        placed(network(), PipelineConfig(device_mapping=(0, 1)))


@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"])
def test_a_runner_is_what_the_engine_runs(mode):
    from dataclasses import replace

    model = network()
    model.build((None, 4))
    model.optimizer.build(model.trainable_variables)
    config = replace(config_of(model), placement=placed(model))
    runner: ModelRunner = PipelineConfig().make_runner(model, config, mode, NULL_OBSERVER)
    assert isinstance(runner, TrainingRunner if mode == "train" else InferenceRunner)
    runner.place()
    assert model.get_layer("b").kernel.value.devices() == {jax.devices()[1]}
    assert runner.still_fits()
    model.compile("sgd", "mse")
    assert not runner.still_fits()
