"""An image that is mirrored in one epoch is not in the next."""

import numpy as np
from convoy.data.batches import Batches, Order
from convoy.data.flips import AlternatingFlip

SETTINGS = {"batches_per_epoch": 3, "shuffle": True, "seed": 5}


def mirrored(epochs, **settings):
    """Return for each epoch which samples were mirrored, by sample."""
    order = Order(60, 20, **(SETTINGS | settings))
    flips = AlternatingFlip(order)
    found = []
    for epoch in range(epochs):
        by_sample = np.zeros(60, bool)
        for number in range(3):
            position = 3 * epoch + number
            by_sample[order.chosen(position)] = flips(position)
        found.append(by_sample)
    return np.array(found)


def test_every_image_is_mirrored_in_every_second_epoch():
    first, second, third, fourth = mirrored(4)
    np.testing.assert_array_equal(second, ~first)
    np.testing.assert_array_equal(third, first)
    np.testing.assert_array_equal(fourth, second)


def test_chance_decides_by_the_seed_in_which():
    first = mirrored(1)[0]
    assert 15 < first.sum() < 45
    np.testing.assert_array_equal(mirrored(1)[0], first)
    assert (mirrored(1, seed=6)[0] != first).any()


def test_passes_within_an_epoch_count_too():
    order = Order(60, 20, **(SETTINGS | {"batches_per_epoch": 6, "shuffle": False}))
    flips = AlternatingFlip(order)
    np.testing.assert_array_equal(flips(3), ~flips(0))
    np.testing.assert_array_equal(flips(6), flips(0))


def batches():
    images = np.arange(60.0).reshape(60, 1, 1, 1) + np.array([0, 0.5]).reshape(2, 1)
    order = Order(60, 20, **SETTINGS)
    return Batches(
        images, np.arange(60), order, 3, lambda x, y, rng: (x, y), AlternatingFlip(order)
    )


def test_batches_are_mirrored_and_stay_the_same_after_a_resumption():
    def epoch(dataset):
        found = np.concatenate([dataset[number][0] for number in range(3)])
        dataset.on_epoch_end()
        return found[:, 0, :, 0]

    whole = batches()
    epochs = [epoch(whole) for _ in range(3)]
    turned = [np.sort(np.floor(images[images[:, 0] > images[:, 1], 0])) for images in epochs]
    assert len(turned[0]) + len(turned[1]) == 60
    assert not set(turned[0]) & set(turned[1])
    np.testing.assert_array_equal(turned[2], turned[0])
    resumed = batches()
    resumed.set_state(2)
    np.testing.assert_array_equal(epoch(resumed), epochs[2])
