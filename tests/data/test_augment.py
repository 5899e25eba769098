import numpy as np
import pytest
from convoy.data import augment


@pytest.fixture
def images(rng):
    return rng.integers(1, 256, (64, 6, 5, 3)).astype("uint8")


def test_a_flip_mirrors_some_and_leaves_others(images, rng):
    out = augment.random_flip(images, rng)
    kept = (out == images).all((1, 2, 3))
    mirrored = (out == images[:, :, ::-1]).all((1, 2, 3))
    assert (kept | mirrored).all()
    assert 0 < mirrored.sum() < 64


@pytest.mark.parametrize(("border", "mode"), [("zeros", "constant"), ("reflect", "reflect")])
def test_a_crop_is_a_window_of_the_padded_image(images, rng, border, mode):
    out = augment.random_crop(images, 2, rng, border)
    assert out.shape == images.shape
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), mode)
    places = set()
    for number in range(64):
        found = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if (padded[number, top : top + 6, left : left + 5] == out[number]).all()
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 10


def test_mixup_mixes_images_as_labels(rng):
    # Images that are their label's share make the two comparable.
    labels = np.eye(4, dtype="float32")[rng.integers(0, 4, 32)]
    images = np.broadcast_to(labels[:, None, None, :], (32, 3, 3, 4))
    mixed, shares = augment.mixup(images, labels, 0.4, rng)
    np.testing.assert_allclose(
        mixed, np.broadcast_to(shares[:, None, None], mixed.shape), rtol=1e-6
    )
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    assert mixed.dtype == np.float32


def test_cutmix_pastes_as_much_as_it_says(rng):
    labels = np.eye(4, dtype="float32")[rng.integers(0, 4, 32)]
    images = np.broadcast_to(labels[:, None, None, :], (32, 8, 8, 4))
    mixed, shares = augment.cutmix(images, labels, 1.0, rng)
    np.testing.assert_allclose(mixed.mean((1, 2)), shares, atol=1e-6)
    assert set(np.unique(mixed)) == {0, 1}


def test_standardised_images_have_mean_0_and_deviation_1(images):
    out = augment.normalise(images, "standardise")
    np.testing.assert_allclose(out.mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(out.std((1, 2, 3)), 1, rtol=1e-5)
    assert np.isfinite(augment.normalise(np.zeros((1, 2, 2, 1), "uint8"), "standardise")).all()


def test_bytes_drop_fractions_and_wrap_around():
    numbers = np.array([0, 1.9, 255, -1, 256, 257.5])
    assert augment.to_bytes(numbers).tolist() == [0, 1, 255, 255, 0, 1]
