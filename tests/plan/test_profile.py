import keras
import pytest
from convoy.plan.profile import estimate_profile
from keras import layers


def test_layers_cost_their_products_or_their_bytes():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            layers.Conv2D(16, 3, padding="same", use_bias=False),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(10, use_bias=False),
        ]
    )
    profile = estimate_profile(model, flops=1e6, bandwidth=1e6, source="paper")
    convolution = 3 * 2 * 8 * 8 * 16 * 3 * 3 * 4 / 1e6
    rectifier = 3 * 2 * 4 * 8 * 8 * 16 / 1e6
    dense = 3 * 2 * 1024 * 10 / 1e6
    flat = rectifier
    whole = convolution + rectifier + flat + dense
    expected = [convolution, rectifier, flat, dense]
    assert profile.time_shares == pytest.approx([one / whole for one in expected], rel=1e-3)
    assert profile.step_seconds(8) == pytest.approx(8 * whole, rel=1e-3)
    assert profile.weights == (4 * 3 * 3 * 4 * 16, 0, 0, 4 * 10240)
    assert profile.activations == (4096, 4096, 4096, 40)
    assert profile.allowed_cuts == (1, 2, 3)
