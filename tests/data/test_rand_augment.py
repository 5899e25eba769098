import numpy as np
import pytest
from convoy.data.rand_augment import rand_augment


@pytest.fixture
def images(rng):
    return rng.integers(1, 256, (64, 6, 5, 3)).astype("uint8")


@pytest.mark.parametrize("channels", [1, 3])
def test_rand_augment_changes_most_images_and_keeps_their_form(images, rng, channels):
    images = images[..., :channels]
    out = rand_augment(images, 0.7, rng)
    assert (out.shape, out.dtype) == (images.shape, np.uint8)
    assert (out != images).any((1, 2, 3)).mean() > 0.5
    again = rand_augment(images, 0.7, np.random.default_rng(1))
    np.testing.assert_array_equal(again, rand_augment(images, 0.7, np.random.default_rng(1)))
