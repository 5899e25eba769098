"""Every network of `keras.applications` trains two steps as in stock Keras.

At its random start such a network can be so ill-conditioned that rounding in the last bit of a
weight changes the second step's loss by percents, in stock Keras as in Convoy. So a network of each
family is compared in float64, where the tolerance leaves no room for a different computation. In
float32, where the native kernels run, every network may differ by as much as stock Keras itself
moves when its weights are rounded differently.
"""

from collections.abc import Callable

import jax
import keras
import numpy as np
import pytest
from tests.pipeline.test_applications import NETWORKS, SIZES

from .side_by_side import (
    FLOAT64_TOLERANCE,
    assert_same,
    assert_within_rounding,
    in_float64,
    make_convoy,
    make_stock,
    state,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]

STEPS, BATCH, CLASSES = 2, 4, 10

# The smallest network of each family.
FAMILIES = [
    "ConvNeXtTiny",
    "DenseNet121",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "NASNetMobile",
    "ResNet50",
    "ResNet50V2",
    "VGG16",
    "Xception",
]


def network(name: str) -> Callable[[int], keras.Model]:
    def make(steps: int) -> keras.Model:
        size = max(64, SIZES.get(name, 0))
        model = getattr(keras.applications, name)(
            weights=None, input_shape=(size, size, 3), classes=CLASSES
        )
        model.compile(
            keras.optimizers.SGD(1e-4, momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=steps,
        )
        return model

    return make


def train(model: keras.Model) -> dict[str, list[float]]:
    rng = np.random.default_rng(0)
    # Pictures of large squares: noise looks the same to the last layers of a network.
    size = model.input_shape[1]
    squares = rng.uniform(0, 255, (STEPS * BATCH, 4, 4, 3))
    at = np.arange(size) * 4 // size
    x = squares[:, at][:, :, at].astype(model.compute_dtype)
    y = rng.integers(0, CLASSES, len(x)).astype("int32")
    return model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history


@pytest.mark.parametrize("name", FAMILIES)
def test_two_steps_in_float64(name):
    with in_float64():
        stock = make_stock(network(name))
        expected = train(stock), state(stock)
        del stock
        model = make_convoy(network(name), STEPS)
        assert_same((train(model), state(model)), expected, tolerance=FLOAT64_TOLERANCE)


@pytest.mark.parametrize("name", NETWORKS)
def test_two_steps_in_float32(name):
    assert_within_rounding(network(name), train, STEPS)
    jax.clear_caches()
