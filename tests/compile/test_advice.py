from types import SimpleNamespace

import convoy
import keras
import pytest
from convoy.compile.advice import Demand, MemoryNeed, advise
from convoy.compile.analysis import ObservedRun
from convoy.pipeline.config import PipelineConfig
from keras import layers

GB = 10**9


def large():
    """Return a network with 0.3 GB of activations for each sample."""
    x = inputs = keras.Input((256, 256, 8))
    for _ in range(128):
        x = layers.ReLU()(x)
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))


def run_of(method="fit", batch=256, replicas=2, model=None, batch_is="replica", **config):
    defaults = {
        "replicas": replicas,
        "gradient_accumulation": 2,
        "batch": batch_is,
        "pipeline": None,
        "activation_checkpointing": None,
        "shard": None,
        "gather_budget": 2 * GB,
    }
    run = ObservedRun(method, model or large(), SimpleNamespace(**defaults | config))
    run.batch = batch
    return run


def advice(total, state, run, *, data=0, devices=8, unit=GB):
    """Return the advice for a run on devices with 16 GB, of which 14.4 GB are used."""
    need = MemoryNeed(total * unit, state * unit, (state + data) * unit)
    return advise(Demand("train", need, 16 * unit, run), devices)


def test_activations_that_are_too_large_need_a_smaller_micro_batch_or_checkpointing():
    first, second = advice(31, 1, run_of())
    # 128 samples take 30 GB, and there is room for 13.4 GB.
    assert first.startswith("a micro-batch of 32 instead of 128 (--micro-batch-size 32,")
    assert "accumulation over 8 micro-batches" in first
    assert 'Strategy(activation_checkpointing="auto")' in second


def test_data_stay_as_large_with_a_smaller_micro_batch():
    first, *_ = advice(31, 1, run_of(), data=7)
    # 128 samples take 23 GB, and there is room for 6.4 GB.
    assert first.startswith("a micro-batch of 32 instead of 128")
    first, *_ = advice(31, 1, run_of(), data=11)
    assert first.startswith("a micro-batch of 16 instead of 128")


def test_a_global_batch_stays_and_is_accumulated_in_more_parts():
    first, *_ = advice(31, 1, run_of(batch_is="global"))
    assert first == (
        "a micro-batch of 32 instead of 128: gradient accumulation over 8 micro-batches"
    )


@pytest.mark.parametrize(
    "model", [keras.Sequential([keras.Input((2,)), layers.Dense(2)]), keras.Model()]
)
def test_checkpointing_is_advised_only_where_it_saves_memory(model):
    assert not any("checkpointing" in line for line in advice(31, 1, run_of(model=model)))
    # Half of the memory is for activations, so that 9 GB of state do not fit beside them.
    assert not any("checkpointing" in line for line in advice(31, 9, run_of()))
    run = run_of(activation_checkpointing=8 * GB)
    assert not any("checkpointing" in line for line in advice(31, 1, run))


def test_gradients_stay_as_large_with_a_smaller_micro_batch():
    # Weights of 4 MB, whose gradients are accumulated in 4 MB more.
    dense = keras.Sequential([keras.Input((1000,)), layers.Dense(1000, use_bias=False)])
    found = advice(31, 7, run_of(model=dense), unit=10**6)
    assert not any("micro-batch of" in line for line in found)
    first, *_ = advice(31, 7, run_of(model=dense, gradient_accumulation=1), unit=10**6)
    assert first.startswith("a micro-batch of 16 instead of 128")


def test_a_state_that_is_too_large_needs_shards_or_stages():
    first, second = advice(34, 30, run_of(replicas=8))
    assert first == 'sharded weights (--shard weights, Strategy(shard="weights"))'
    assert second == (
        "6 pipeline stages (--pipeline-splits auto 6 --num-replicas 1, convoy.split(model, 6))"
    )


def test_shards_are_not_advised_if_they_would_not_fit():
    # Half of the state still takes 15 GB.
    (only,) = advice(34, 30, run_of(replicas=2))
    assert only.startswith("6 pipeline stages (--pipeline-splits auto 6 --num-replicas 1,")


def test_shards_leave_room_for_a_smaller_micro_batch():
    # 20 GB are 6 GB on each of four devices, with the weights that are gathered, and there is room
    # for 8.4 of the 30 GB that 64 samples take.
    first, *_ = advice(50, 20, run_of(replicas=4))
    assert first.startswith("sharded weights")
    assert "together with a micro-batch of 16 instead of 64" in first


@pytest.mark.parametrize("replicas", [1, 2])
def test_no_more_stages_are_advised_than_there_are_devices(replicas):
    assert advice(34, 30, run_of(replicas=replicas), devices=5) == ["devices with more memory"]


def test_stages_do_not_divide_activations():
    assert not any("stages" in line for line in advice(31, 1, run_of(), devices=16))


def test_a_micro_batch_of_one_cannot_be_smaller():
    assert not any("micro-batch of" in line for line in advice(20, 1, run_of(batch=2)))


def test_inference_can_only_have_a_smaller_batch():
    (only,) = advice(31, 1, run_of("predict"))
    assert only == (
        "a micro-batch of 32 instead of 128 (--validation-micro-batch-size 32, batch_size=32)"
    )
    assert advice(31, 30, run_of("predict")) == ["devices with more memory"]


def test_an_exported_model_can_have_smaller_batch_sizes():
    (only,) = advice(31, 1, run_of("serve", batch=0))
    assert only == "smaller batch sizes (convoy export --batch-sizes)"


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_pipeline_can_have_checkpointing_and_more_stages(checkpoints):
    with convoy.Strategy(2).scope():
        model = large()
    convoy.split(model, [model.layers[4].name])
    pipeline = PipelineConfig(activation_checkpointing=checkpoints)
    found = advice(20, 16, run_of(replicas=1, model=model, pipeline=pipeline))
    assert any("set_pipelining_options" in line for line in found) == (not checkpoints)
    # 32 GB of weights in all.
    assert found[-1].startswith("6 pipeline stages (--pipeline-splits auto 6, convoy.split")
