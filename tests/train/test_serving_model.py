import numpy as np
import pytest
from convoy.train.flags import Options
from convoy.train.network import make_network
from convoy.train.run_settings import make_run_settings
from convoy.train.serving_model import make_serving_model, preprocessing_from_bytes

BYTES = {"eight_bit_transfer": True, "accelerator_side_preprocess": True}
ON_DEVICE = {"accelerator_side_preprocess": True}


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (2, 28, 28, 1)).astype("uint8")


def options(**more):
    return Options(dataset="mnist", precision="32.32", seed=1, **more)


@pytest.mark.parametrize("side", [{}, ON_DEVICE, BYTES], ids=["host", "device", "bytes"])
def test_a_model_takes_bytes_wherever_training_normalised_them(images, tmp_path, side):
    settings = make_run_settings(options(**side))
    network = make_network(settings.options, settings.info, 1)
    path = tmp_path / "epoch_1.0.weights.h5"
    network.save_weights(path)
    made = make_serving_model(options(**side), path)
    assert (made.preprocessing is None) == (side == BYTES)
    inputs = images if made.preprocessing is None else made.preprocessing(images)
    # MNIST is divided by 255; with BYTES or ON_DEVICE, in the network's own first layer.
    expected = network(images if side else images.astype("float32") / 255)
    np.testing.assert_allclose(made.model(inputs), expected, rtol=1e-5, atol=1e-6)


def test_options_that_only_training_needs_are_ignored():
    made = make_serving_model(options(synthetic_data="device"), None)
    assert made.model.input_shape == (None, 28, 28, 1)
    assert made.info.name == "mnist"


def test_without_normalisation_bytes_only_become_numbers(images):
    found = np.asarray(preprocessing_from_bytes(None)(images))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, images)
