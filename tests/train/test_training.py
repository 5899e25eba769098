"""The training phase: its strategy, its compiled model, and what `fit` leaves behind."""

import contextlib
import io

import keras
import numpy as np
import pytest
from convoy.progress_bar import Output
from convoy.train.flags import Options
from convoy.train.input import Images
from convoy.train.run_folder import RunFolder
from convoy.train.run_log import RunLog
from convoy.train.run_settings import make_run_settings
from convoy.train.training import (
    describe,
    first_layers,
    prepare_training,
    train,
    training_strategy,
)

SAMPLES = 20
COMMON = {"micro_batch_size": 5, "seed": 1, "shuffle": False, "precision": "32.32"}


def settings_of(**options):
    return make_run_settings(Options(**COMMON | options), SAMPLES)


def prepare(**options):
    settings = settings_of(**options)
    return prepare_training(settings, training_strategy(settings))


@pytest.fixture
def images(rng):
    split = rng.integers(0, 256, (SAMPLES, 32, 32, 3)).astype("uint8"), np.arange(SAMPLES) % 10
    return Images(split, split)


def run(folder, images, **options):
    """Train in a folder; return the trained model and the callback with its metrics."""
    training = prepare(augment=False, **options)
    log = RunLog(RunFolder(folder), Output(io.StringIO()))
    log.folder.open({})
    with contextlib.closing(log.folder):
        return training.model, train(training, images, log)


def test_the_strategy_has_the_devices_and_numbers_of_the_options():
    strategy = training_strategy(
        settings_of(num_replicas=2, gradient_accumulation=2, loss_scale=8.0, shard="weights")
    )
    assert strategy.replicas == 2
    assert strategy.execution_config.gradient_accumulation == 2
    assert strategy.execution_config.shard == "weights"
    assert strategy.numerics.loss_scaling is not None
    assert training_strategy(settings_of()).numerics.loss_scaling is None


@pytest.mark.parametrize(
    ("precision", "requested", "expected"),
    [
        ("16.16", "on", "on"),
        ("16.16", "replica_identical", "replica_identical"),
        ("16.16", "off", "off"),
        ("32.32", "on", "off"),
        ("16.32", "on", "off"),
    ],
)
def test_only_16_bit_weights_are_rounded(precision, requested, expected):
    settings = settings_of(precision=precision, stochastic_rounding=requested)
    assert training_strategy(settings).numerics.stochastic_rounding == expected


def test_stages_on_one_device_only_checkpoint_activations():
    stages = {"pipeline_splits": ["conv2d_1"], "activation_checkpointing": True}
    together, apart = (
        training_strategy(settings_of(device_mapping=devices, **stages)).execution_config
        for devices in ([0, 0], [0, 1])
    )
    assert together.activation_checkpointing is not None
    assert apart.activation_checkpointing is None


def test_a_model_is_split_where_the_options_say():
    training = prepare(pipeline_splits=["conv2d_1"])
    assert first_layers(training.model) == ["conv2d_1"]
    assert first_layers(prepare(pipeline_splits=["auto", "2"]).model)
    assert first_layers(prepare().model) == []


def test_the_description_has_the_sizes_of_model_and_batch(images):
    output = Output(io.StringIO())
    describe(prepare(gradient_accumulation=2, num_replicas=2), images, output)
    assert output.stream.getvalue().splitlines() == [
        "model               toy_model, 242 trainable parameters",
        "micro batch size    5",
        "num replicas        2",
        "grad. accumulation  2",
        "global batch size   20",
        "weight updates      1 per epoch, 1 per device call",
    ]


def test_splits_that_balance_better_are_recommended(images):
    output = Output(io.StringIO())
    describe(prepare(pipeline_splits=["flatten"]), images, output)
    assert output.stream.getvalue().splitlines()[-1] == "Recommended splits = ['conv2d_1']"


@pytest.mark.integration
def test_training_logs_each_device_call_and_saves_weights(tmp_path, images):
    model, progress = run(tmp_path, images, num_epochs=2, logs_per_epoch=2)
    assert [row.update for row in progress.calls] == [2, 4, 6, 8]
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["epoch_1.0.weights.h5", "epoch_2.0.weights.h5"]
    trained = model.get_weights()
    model.load_weights(tmp_path / "checkpoints" / names[-1])
    for found, expected in zip(model.get_weights(), trained, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.integration
def test_a_warm_up_does_not_change_the_training(tmp_path, images):
    losses = []
    for warm_up in (False, True):
        keras.utils.set_random_seed(0)
        _, progress = run(tmp_path / str(warm_up), images, mlperf_logging=warm_up)
        losses.append([row.loss for row in progress.calls])
    assert losses[0] == losses[1]
