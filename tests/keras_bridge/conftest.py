import keras
import pytest


@pytest.fixture
def model():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)], name="bridge"
    )
    model.compile("sgd", "mse", metrics=["mae"])
    return model
