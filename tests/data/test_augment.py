from itertools import chain

import numpy as np
import pytest
from convoy.data import augment
from convoy.data.batches import endless_batches
from convoy.data.rand_augment import rand_augment


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


@pytest.fixture
def images(rng):
    return rng.integers(1, 256, (64, 6, 5, 3)).astype("uint8")


def test_a_flip_mirrors_some_and_leaves_others(images, rng):
    out = augment.random_flip(images, rng)
    kept = (out == images).all((1, 2, 3))
    mirrored = (out == images[:, :, ::-1]).all((1, 2, 3))
    assert (kept | mirrored).all()
    assert 0 < mirrored.sum() < 64


def test_a_crop_is_a_window_of_the_padded_image(images, rng):
    out = augment.random_crop(images, 2, rng)
    assert out.shape == images.shape
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
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
    out = augment.standardise(images)
    np.testing.assert_allclose(out.mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(out.std((1, 2, 3)), 1, rtol=1e-5)
    assert np.isfinite(augment.standardise(np.zeros((1, 2, 2, 1), "uint8"))).all()


def test_bytes_drop_fractions_and_wrap_around():
    numbers = np.array([0, 1.9, 255, -1, 256, 257.5])
    assert augment.to_bytes(numbers).tolist() == [0, 1, 255, 255, 0, 1]


def batches(count, **settings):
    x = np.arange(10)[:, None, None, None]
    made = endless_batches(
        x,
        np.arange(10),
        3,
        **{"batches_per_epoch": 3, "shuffle": True, "seed": 5} | settings,
        transform=settings.pop("transform", lambda x, y, rng: (x, y)),
    )
    return [next(made)[1].tolist() for _ in range(count)]


def test_an_epoch_has_no_sample_twice_and_the_next_another_order():
    six = batches(6)
    assert all(len(set(chain(*six[start : start + 3]))) == 9 for start in (0, 3))
    assert six[:3] != six[3:]


def test_order_depends_on_the_seed_alone():
    assert batches(6) == batches(6)
    assert batches(6) != batches(6, seed=6)


def test_without_shuffling_data_come_as_they_are():
    assert batches(4, shuffle=False) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 2]]


def test_an_epoch_longer_than_the_data_goes_through_it_again():
    five = batches(5, batches_per_epoch=5)
    assert len(set(chain(*five[:3]))) == 9
    assert len(set(chain(*five[3:]))) == 6


def test_data_that_does_not_fill_a_batch_is_refused():
    made = endless_batches(
        np.zeros((2, 1)),
        np.zeros(2),
        3,
        batches_per_epoch=1,
        shuffle=False,
        seed=0,
        transform=lambda x, y, rng: (x, y),
    )
    with pytest.raises(ValueError, match="2 samples do not fill a batch of 3"):
        next(made)


@pytest.mark.parametrize("channels", [1, 3])
def test_rand_augment_changes_most_images_and_keeps_their_form(images, rng, channels):
    images = images[..., :channels]
    out = rand_augment(images, 0.7, rng)
    assert (out.shape, out.dtype) == (images.shape, np.uint8)
    assert (out != images).any((1, 2, 3)).mean() > 0.5
    again = rand_augment(images, 0.7, np.random.default_rng(1))
    np.testing.assert_array_equal(again, rand_augment(images, 0.7, np.random.default_rng(1)))
