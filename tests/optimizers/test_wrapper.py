"""A wrapper shares learning rate, iterations and state with the optimizer inside it."""

import keras
import numpy as np
import pytest
from convoy.optimizers.wrapper import OptimizerWrapper
from keras import optimizers


@keras.saving.register_keras_serializable(package="tests")
class Doubled(OptimizerWrapper):
    """Doubles gradients."""

    def __init__(self, optimizer, name="doubled"):
        super().__init__(optimizer, name)

    def update(self, grads, variables):
        self.optimizer.apply([2 * gradient for gradient in grads], variables)


def test_a_wrapper_updates_by_the_optimizer_inside():
    weight = keras.Variable(np.zeros(2, np.float32))
    Doubled(optimizers.SGD(0.1)).apply([np.ones(2, np.float32)], [weight])
    np.testing.assert_allclose(weight.numpy(), -0.2, rtol=1e-6)


def test_learning_rate_iterations_and_variables_are_those_inside():
    inside = optimizers.Adam(0.1)
    wrapper = Doubled(inside)
    wrapper.learning_rate = 0.5
    assert float(inside.learning_rate) == 0.5
    weight = keras.Variable(np.zeros(2, np.float32))
    wrapper.apply([np.ones(2, np.float32)], [weight])
    assert int(wrapper.iterations.numpy()) == int(inside.iterations.numpy()) == 1
    assert [v.path for v in wrapper.variables] == [v.path for v in inside.variables]


def test_a_wrapper_survives_saving_with_what_is_inside():
    config = keras.saving.serialize_keras_object(Doubled(optimizers.SGD(0.25, momentum=0.5)))
    restored = keras.saving.deserialize_keras_object(config)
    assert isinstance(restored, Doubled)
    assert restored.optimizer.get_config()["momentum"] == 0.5
    assert float(restored.learning_rate) == 0.25


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        (optimizers.LossScaleOptimizer(optimizers.SGD()), "Put Doubled inside"),
        (optimizers.SGD(loss_scale_factor=8.0), r"loss_scale_factor=8\.0"),
    ],
)
def test_an_optimizer_that_scales_the_loss_is_rejected(inside, message):
    with pytest.raises(ValueError, match=message):
        Doubled(inside)
