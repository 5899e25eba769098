"""Conversion and averaging of checkpoints, by `convoy checkpoint`."""

import re

import convoy
import keras
import numpy as np
import pytest
from convoy.checkpoint import store
from convoy.checkpoint.folder import Folder
from keras import layers

from .conftest import StopAt, StopError

pytestmark = pytest.mark.integration

# Keras numbers layers over all models of a process, and so by the tests that ran before.
KERNEL = re.compile(r"dense(_\d+)?/kernel$")


def weights(model):
    return [np.asarray(variable.value) for variable in model.weights]


def test_a_class_that_only_the_training_script_knows_is_not_needed_for_the_weights(call, tmp_path):
    class Halving(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return 0.1 * 0.5 ** keras.ops.cast(step, "float32")

        def get_config(self):
            return {}

    with convoy.Strategy().scope():
        inputs = keras.Input((3,))
        model = keras.Model(inputs, layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(Halving()), "mse")
    x = np.ones((4, 3), "float32")
    model.fit(x, x[:, :2], verbose=0, callbacks=[convoy.Checkpoints(tmp_path / "run")])
    assert call("convert", tmp_path / "run", tmp_path / "model.keras") == 0
    converted = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_equal(weights(converted), weights(model))


def test_convert_to_keras_and_back(call, plain, run, tmp_path, capsys):
    plain.run(epochs=3)
    expected = weights(plain.model)
    assert call("convert", run, tmp_path / "model.keras") == 0
    model = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_equal(weights(model), expected)
    moments = [np.asarray(v.value) for v in plain.model.optimizer.variables]
    np.testing.assert_equal([np.asarray(v.value) for v in model.optimizer.variables], moments)

    back = tmp_path / "back" / "epoch-0000-step-00000000"
    assert call("convert", tmp_path / "model.keras", back) == 0
    assert call("show", back) == 0
    # A run that begins there has these weights at its start, and all else is its own.
    with pytest.raises(StopError):
        plain.run(convoy.Checkpoints(back.parent), StopAt(0, 0), spoil=True)
    np.testing.assert_equal(weights(plain.model), expected)


def test_convert_to_weights_and_back(call, plain, run, tmp_path):
    plain.run(epochs=3)
    expected = weights(plain.model)
    weights_file = tmp_path / "model.weights.h5"
    assert call("convert", run, weights_file) == 0
    plain.run(epochs=1)
    plain.model.load_weights(weights_file)
    np.testing.assert_equal(weights(plain.model), expected)
    assert call("convert", weights_file, tmp_path / "back") == 1
    assert call("convert", run, tmp_path / "model.keras") == 0
    back = tmp_path / "back"
    assert call("convert", weights_file, back, "--model", tmp_path / "model.keras") == 0
    trainable = [
        [array for name, array in content.arrays.items() if name.startswith("trainable/")]
        for content in (store.read(back), Folder(run).newest()[1])
    ]
    np.testing.assert_equal(*trainable)


def test_average_is_the_mean_of_the_weights(call, run, tmp_path):
    assert call("average", run, "--output", tmp_path / "mean") == 0
    folder = Folder(run)
    contents = [store.read(folder.at(position)) for position in folder.positions()]
    mean = store.read(tmp_path / "mean").arrays
    assert {name.split("/")[0] for name in mean} == {"trainable", "non_trainable"}
    name = next(name for name in mean if KERNEL.search(name))
    expected = np.mean([content.arrays[name].astype("float64") for content in contents], axis=0)
    np.testing.assert_array_equal(mean[name], expected.astype("float32"))
    assert call("average", run, "--output", tmp_path / "mean.keras") == 0
    kernel = keras.models.load_model(tmp_path / "mean.keras").layers[0].kernel
    np.testing.assert_array_equal(np.asarray(kernel.value), mean[name])


def test_nothing_is_written_over(call, run, capsys):
    assert call("convert", run, run) == 1
    assert "already exists" in capsys.readouterr().err


def test_a_model_whose_configuration_contains_code_is_refused(call, tmp_path, capsys):
    model = keras.Sequential([keras.Input((2,)), layers.Lambda(lambda x: x * 2)])
    described = model.to_json()
    store.write(tmp_path / "harm", store.Checkpoint({}, {"weights_only": True}, {}, described))
    assert call("convert", tmp_path / "harm", tmp_path / "out.keras") == 1
    assert "lambda" in capsys.readouterr().err.lower()
    assert not (tmp_path / "out.keras").exists()
