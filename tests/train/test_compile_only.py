"""`--compile-only`: programs are compiled, and nothing is trained or written."""

import numpy as np
import pytest
from convoy.cli.train import parse
from convoy.train.input import open_images
from convoy.train.run_settings import make_run_settings
from convoy.train.training import compile_programs, prepare_training, training_strategy

pytestmark = pytest.mark.integration

WORDS = ("--precision", "32.32", "--seed", "1", "--micro-batch-size", "5")
STAGES = ("--pipeline-splits", "conv2d_1", "--num-replicas", "2", "--gradient-accumulation", "2")
STAGE_PROGRAMS = ["stage 0 forward", "stage 1 forward", "stage 1 backward", "stage 0 backward"]
UPDATES = ["device 0 reduce", "device 0 update", "device 1 reduce", "device 1 update"]


def test_nothing_is_trained_and_nothing_is_written(application, tmp_path):
    done = application(*WORDS, "--compile-only")
    assert done.status == 0, done.err
    assert "compiled            train: " in done.out
    assert done.out.endswith("Nothing was trained. The programs are in the compilation cache.\n")
    assert "training_accuracy" not in done.out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "names"), [((), ["train"]), (STAGES, STAGE_PROGRAMS + UPDATES)], ids=["one", "stages"]
)
def test_the_weights_stay_and_each_program_is_named_once(small_cifar, words, names):
    options = parse([*WORDS, *words, "--dataset-path", str(small_cifar)])
    settings = make_run_settings(options, 50)
    strategy = training_strategy(settings)
    training = prepare_training(settings, strategy)
    before = training.model.get_weights()
    images = open_images(options, settings.info, seed=1)
    compiled = compile_programs(training, images, strategy)
    assert sorted(compiled) == sorted(names)
    assert min(compiled.values()) > 0
    for value, expected in zip(training.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_validation_alone_has_nothing_to_compile(application):
    done = application(*WORDS, "--compile-only", "--training", False)
    assert done.status == 2
    assert "--compile-only compiles the training" in done.err
