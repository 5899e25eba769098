import keras
import numpy as np
import pytest
from convoy.train.metrics import MetricsRow
from convoy.train.validation import load_checkpoint, sweep_metrics


def row(epoch, accuracy):
    return MetricsRow("validation", int(10 * epoch), epoch, 1.25, accuracy, 100.0)


def test_sweep_metrics():
    rows = [row(1.0, 0.7), row(2.0, 0.76), row(4.0, 0.74)]
    metrics = sweep_metrics(rows, 0.75)
    assert metrics["epoch_to_target"] == 2.0
    assert metrics["optimization_metric"] == pytest.approx(np.exp(-0.5 * 0.5**2) / 4)
    assert "epoch_to_target" not in sweep_metrics(rows, 0.9)


def network(units):
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)], name="small")


def test_weights_of_a_file_are_loaded_without_the_optimizer(tmp_path):
    trained, fresh = network(3), network(3)
    trained.compile("adam", "mse")
    trained.fit(np.zeros((4, 2)), np.zeros((4, 3)), verbose=0)
    trained.save_weights(tmp_path / "epoch_1.0.weights.h5")
    load_checkpoint(fresh, tmp_path / "epoch_1.0.weights.h5")
    np.testing.assert_array_equal(fresh.get_weights()[0], trained.get_weights()[0])


def test_a_file_of_another_network_is_refused_in_one_line(tmp_path):
    network(3).save_weights(tmp_path / "epoch_1.0.weights.h5")
    for path in (tmp_path / "epoch_1.0.weights.h5", tmp_path / "none.weights.h5"):
        with pytest.raises(ValueError, match="does not hold the weights of small: ") as error:
            load_checkpoint(network(4), path)
        assert "\n" not in str(error.value)
