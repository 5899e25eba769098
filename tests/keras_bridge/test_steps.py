"""Loss and metrics of a step."""

from pathlib import Path

import keras
import numpy as np
import pytest
from convoy import keras_bridge, user_warnings


def test_metrics_say_that_their_state_adds_up(model):
    model.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0)
    assert {variable.aggregation for variable in model.metrics_variables} == {"sum"}


def test_keras_has_no_device_loop_of_its_own_that_would_clash():
    from keras.src.backend.jax import trainer

    source = Path(trainer.__file__).read_text()
    assert "lax.scan" not in source, "Keras scans over steps now: look at steps_per_execution again"


def test_the_compiled_loss_leaves_out_the_losses_of_layers(model):
    x, y = np.ones((2, 4), "float32"), np.ones((2, 2), "float32")
    model.fit(x, y, verbose=0)
    metrics = keras_bridge.values(model.metrics_variables)
    loss, updated = keras_bridge.compiled_loss(model, metrics, y, 3 * y, None)
    assert float(loss) == 4
    assert len(updated) == len(metrics)


def test_the_loss_is_reported_by_another_metric(model):
    tracker = keras.metrics.Sum(name="loss")
    keras_bridge.set_loss_tracker(model, tracker)
    assert model.metrics[0] is tracker


def test_metrics_of_classes_outside_of_keras_are_told_apart(model):
    class Custom(keras.metrics.Sum):
        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(y_pred)

    model.compile("sgd", "mse", metrics=["mae", Custom()])
    model.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0)
    custom = keras_bridge.of_custom_metrics(model, model.metrics_variables)
    assert sum(custom) == 1
    assert custom[-1]


def test_epochs_are_limited_as_keras_is_configured():
    keras.config.set_max_epochs(2)
    user_warnings.warn_once.cache_clear()
    try:
        with pytest.warns(UserWarning, match="Limiting epochs to 2"):
            assert keras_bridge.limit_epochs(3) == 2
    finally:
        keras.config.set_max_epochs(None)
    assert keras_bridge.limit_epochs(3) == 3
