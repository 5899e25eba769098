"""Variables that are sharded over processes are complete in every process when callbacks run."""

import jax
import keras
import numpy as np
import pytest
from convoy.engine.data.placement import AXIS, REPLICATED, Placement
from convoy.trainer import gathered_state
from convoy.trainer.gathered_state import GatheredState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

KERNEL = np.arange(32, dtype=np.float32).reshape(4, 8)
MOMENTUM = KERNEL + 1


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:2]), (AXIS,))


@pytest.fixture
def model(mesh):
    """A model whose kernel, and the kernel's momentum, are sharded over two devices."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    model.compile(keras.optimizers.SGD(momentum=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    kernel, bias = model.trainable_variables
    sharded = NamedSharding(mesh, PartitionSpec(None, AXIS))
    kernel._value = jax.device_put(KERNEL, sharded)
    momentum(model)._value = jax.device_put(MOMENTUM, sharded)
    bias._value = jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, REPLICATED))
    return model


def momentum(model):
    return next(v for v in model.optimizer.variables if v.path.endswith("kernel_momentum"))


@pytest.fixture
def callback(model, mesh, monkeypatch):
    """A callback for which the two devices belong to two processes."""

    def spans_devices(value):
        return len(value.sharding.device_set) > 1

    monkeypatch.setattr(gathered_state, "spans_processes", spans_devices)
    callback = GatheredState(Placement(mesh))
    callback.set_model(model)
    return callback


@pytest.mark.parametrize(
    "hook",
    [
        "on_train_batch_end",
        "on_epoch_end",
        "on_test_batch_end",
        "on_predict_batch_end",
    ],
)
def test_callbacks_read_complete_weights_and_optimizer_state(model, callback, hook):
    getattr(callback, hook)(0, logs={})
    for variable, expected in ((model.layers[0].kernel, KERNEL), (momentum(model), MOMENTUM)):
        assert variable.value.is_fully_replicated
        np.testing.assert_array_equal(variable.value, expected)


def test_variables_that_are_not_sharded_stay_as_they_are(model, callback):
    bias, iterations = model.layers[0].bias.value, model.optimizer.iterations.value
    callback.on_train_end()
    assert model.layers[0].bias.value is bias
    assert model.optimizer.iterations.value is iterations


def test_a_model_without_an_optimizer_is_gathered_too(model, callback):
    plain = keras.Sequential(model.layers)
    callback.set_model(plain)
    callback.on_predict_batch_end(0)
    assert plain.layers[0].kernel.value.is_fully_replicated
