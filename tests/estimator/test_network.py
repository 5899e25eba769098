"""The Keras model of an estimator: its outputs by name, targets and values of steps."""

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.estimator import EstimatorSpec, ModeKeys
from convoy.estimator.input import Element, Signature
from convoy.estimator.network import Network, StepValues, output_names, reset_on_device
from convoy.estimator.run_config import RunConfig
from convoy.estimator.spec import NetworkSpec

ELEMENT = Element(np.ones((4, 3), "float32"), np.zeros((4, 1), "float32"))


def make(spec, **config):
    """Return the network of a spec that a function makes of symbolic inputs."""
    strategy, signature = convoy.Strategy(devices=1), Signature(ELEMENT)
    with strategy.scope():
        tensors = signature.tensors()
        built = NetworkSpec(spec(tensors))
    return Network(built, tensors, signature, RunConfig(strategy=strategy, **config))


def dense(tensors):
    return keras.layers.Dense(1, kernel_initializer="ones")(tensors.features)


def test_values_of_steps_are_kept_until_the_device_call_is_full():
    metric = StepValues((2,), steps=3)
    for number in range(5):
        metric.update_state(None, np.full(2, number, "float32"))
    assert metric.values().tolist() == [[0, 0], [1, 1], [2, 2]]
    reset_on_device(metric.kept)
    reset_on_device(metric.count)
    assert metric.values().shape == (0, 2)
    metric.update_state(None, np.full(2, 7, "float32"))
    assert metric.values().tolist() == [[7, 7]]
    assert float(metric.result()) == 7


def test_a_reset_keeps_the_device_of_a_variable():
    device = jax.devices()[1]
    variable = keras.Variable(np.ones(3, "float32"))
    variable.assign(jax.device_put(np.ones(3, "float32"), device))
    reset_on_device(variable)
    assert variable.value.sharding.device_set == {device}
    assert variable.numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("tensors", "names"),
    [
        ({"a": 1, "b": 2}, {"a": "a", "b": "b"}),
        ([1, 2], ["output_0", "output_1"]),
        (1, "predictions"),
    ],
)
def test_outputs_are_named_by_their_structure(tensors, names):
    assert output_names(tensors) == names


def test_a_keras_loss_compares_predictions_with_the_labels():
    network = make(lambda t: EstimatorSpec(ModeKeys.TRAIN, dense(t), "mse", "sgd"))
    ((inputs, targets),) = network.batches([ELEMENT])
    assert set(inputs) == {"features", "labels"}
    assert list(targets) == ["predictions"]
    np.testing.assert_array_equal(targets["predictions"], ELEMENT.labels)


def test_a_loss_of_the_network_needs_no_target():
    def spec(tensors):
        loss = keras.ops.mean(keras.ops.square(dense(tensors) - tensors.labels))
        logged = {"loss again": loss}
        return EstimatorSpec(ModeKeys.TRAIN, None, loss, "sgd", logged=logged)

    network = make(spec, steps_per_execution=5)
    ((_, targets),) = network.batches([ELEMENT])
    assert {name: target.shape for name, target in targets.items()} == {
        "loss": (4,),
        "logged_0": (4,),
    }
    assert network.outputs["loss"].tensor.shape == (None,)
    assert network.step_values["loss again"].kept.shape == (5,)


def test_predictions_by_name_are_the_outputs():
    network = make(
        lambda t: EstimatorSpec(ModeKeys.PREDICT, {"sum": dense(t), "twice": 2 * dense(t)})
    )
    outputs = network.predict([ELEMENT, ELEMENT], keras.callbacks.Callback())
    assert {name: value.shape for name, value in outputs.items()} == {
        "sum": (8, 1),
        "twice": (8, 1),
    }
    np.testing.assert_allclose(outputs["sum"], 3)
    np.testing.assert_allclose(outputs["twice"], 6)


def test_a_metric_must_compare_with_the_labels():
    def spec(tensors):
        other = dense(tensors)
        metrics = {"error": (keras.metrics.MeanAbsoluteError(), other, dense(tensors))}
        return EstimatorSpec(ModeKeys.EVAL, dense(tensors), "mse", metrics=metrics)

    with pytest.raises(ValueError, match="'error' compares with a tensor that is not one of"):
        make(spec)
