import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.ipu.keras.layers import CaptureActivationGradients, CaptureUpstreamGradients
from convoy.ipu.keras.optimizers import ALSOptimizer


def network():
    return keras.Sequential(
        [
            keras.Input((2,)),
            CaptureActivationGradients(keras.layers.Dense(3, activation="tanh", name="first")),
            CaptureUpstreamGradients(keras.layers.Dense(1, name="second")),
        ]
    )


def test_layers_compute_as_those_that_they_wrap(rng):
    model = network()
    x = rng.normal(size=(4, 2)).astype("float32")
    hidden = np.tanh(x @ model.get_weights()[0] + model.get_weights()[1])
    expected = hidden @ model.get_weights()[2] + model.get_weights()[3]
    np.testing.assert_allclose(model(x), expected, rtol=1e-5)
    copy = keras.Sequential.from_config(model.get_config())
    assert [layer.tag for layer in copy.layers] == ["first_cag", "second_cug"]
    with pytest.raises(ValueError, match="has no activation"):
        CaptureActivationGradients(keras.layers.Flatten())


def test_a_function_is_differentiated_with_gradients_captured():
    capture = ipu.ops.grad_util_ops.capture_upstream_gradients
    with ipu.eager.backprop.GradientCaptureContext() as context:
        gradient = context.gradient(lambda x: capture(x**2, tag="square") * 5, np.float32(3))
    assert float(gradient) == 30
    assert float(context.captured_gradients["square"]) == 5


@pytest.mark.parametrize(("edge", "factor"), [(1e-6, 8), (2**13, 32)])
def test_captured_gradients_alone_decide_the_loss_scale(configure, edge, factor):
    """The weights' gradients are zeros, as the input is; those that come back are not."""
    configure(1)
    optimizer = ALSOptimizer(
        keras.optimizers.SGD(0.0),
        initial_loss_scaling_factor=16,
        update_frequency=2,
        captured_grads_only=True,
        histogram_bin_edge=edge,
    )
    assert optimizer.loss_scaling_factor == 16
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = keras.Sequential(
            [
                keras.Input((2,)),
                CaptureUpstreamGradients(keras.layers.Dense(1, use_bias=False)),
            ]
        )
        model.compile(optimizer, "mse", steps_per_execution=1)
        x, y = np.zeros((4, 2), "float32"), np.ones((4, 1), "float32")
        model.fit(x, y, batch_size=4, verbose=0)
        assert optimizer.update_counter == 1
        assert optimizer.previous_loss_scaling_factor == 16
        large = float(edge < 1)
        np.testing.assert_array_equal(optimizer.histogram, [4 * (1 - large), 4 * large])
        np.testing.assert_array_equal(optimizer.normalized_histogram, [1 - large, large])
        model.fit(x, y, batch_size=4, verbose=0)
        assert optimizer.loss_scaling_factor == factor
        assert optimizer.previous_loss_scaling_factor == 16
        assert optimizer.update_counter == 0
        model.fit(x, y, batch_size=4, verbose=0)
        optimizer.reset()
    assert optimizer.loss_scaling_factor == 16
    assert optimizer.update_counter == 0
    assert optimizer.histogram.sum() == 0


def test_refuses_captured_gradients_where_none_are(configure):
    configure(1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(ALSOptimizer("sgd", captured_grads_only=True), "mse")
        with pytest.raises(ValueError, match="captures none"):
            model.fit(np.zeros((4, 2)), np.ones((4, 1)), batch_size=4, verbose=0)
