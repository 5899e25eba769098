import convoy
import keras
import pytest


@pytest.fixture
def model():
    """A small model with a built optimizer."""
    with convoy.Strategy(devices=1).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model
