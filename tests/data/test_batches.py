"""Every batch follows from seed, epoch and index."""

from itertools import chain

import numpy as np
import pytest
from convoy.data.batches import AlternatingFlip, Batches, Order

SETTINGS = {"batches_per_epoch": 3, "shuffle": True, "seed": 5}


def orders(count, **settings):
    order = Order(10, 3, **(SETTINGS | settings))
    return [order.indices(position).tolist() for position in range(count)]


def test_an_epoch_has_no_sample_twice_and_the_next_another_order():
    six = orders(6)
    assert all(len(set(chain(*six[start : start + 3]))) == 9 for start in (0, 3))
    assert six[:3] != six[3:]


def test_order_depends_on_the_seed_alone():
    assert orders(6) == orders(6)
    assert orders(6) != orders(6, seed=6)


def test_order_can_be_asked_for_in_any_order():
    order = Order(10, 3, **SETTINGS)
    backwards = [order.indices(position).tolist() for position in reversed(range(6))]
    assert backwards[::-1] == orders(6)


def test_without_shuffling_data_come_as_they_are():
    assert orders(4, shuffle=False) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 2]]


def test_an_epoch_longer_than_the_data_goes_through_it_again():
    five = orders(5, batches_per_epoch=5)
    assert len(set(chain(*five[:3]))) == 9
    assert len(set(chain(*five[3:]))) == 6


def test_data_that_does_not_fill_a_batch_is_refused():
    with pytest.raises(ValueError, match="2 samples do not fill a batch of 3"):
        Order(2, 3, **SETTINGS)


def batches(num_batches=3):
    def transform(x, y, rng):
        return x + rng.random(len(x)), y

    return Batches(np.arange(10.0), np.arange(10), Order(10, 3, **SETTINGS), num_batches, transform)


def walk(dataset, epochs):
    for _ in range(epochs):
        yield from (dataset[number] for number in range(dataset.num_batches))
        dataset.on_epoch_end()


def test_a_data_set_that_is_given_the_state_of_another_goes_on_where_that_was():
    whole = list(walk(batches(), 3))
    first, second = batches(), batches()
    list(walk(first, 2))
    second.set_state(first.get_state())
    for (x, y), (wanted_x, wanted_y) in zip(walk(second, 1), whole[6:], strict=True):
        np.testing.assert_array_equal(x, wanted_x)
        np.testing.assert_array_equal(y, wanted_y)


def test_how_many_epochs_keras_takes_at_once_changes_nothing():
    one, two = list(walk(batches(), 4)), list(walk(batches(num_batches=6), 2))
    for (x, _), (wanted, _) in zip(one, two, strict=True):
        np.testing.assert_array_equal(x, wanted)


def flipped(epochs, **settings):
    """Return for each epoch which samples were flipped, by sample."""
    order = Order(60, 20, **(SETTINGS | settings))
    flips = AlternatingFlip(order)
    found = []
    for epoch in range(epochs):
        by_sample = np.zeros(60, bool)
        for number in range(3):
            position = 3 * epoch + number
            by_sample[order.indices(position)] = flips(position)
        found.append(by_sample)
    return np.array(found)


def test_every_image_is_flipped_in_every_second_epoch():
    first, second, third, fourth = flipped(4)
    np.testing.assert_array_equal(second, ~first)
    np.testing.assert_array_equal(third, first)
    np.testing.assert_array_equal(fourth, second)


def test_chance_decides_by_the_seed_in_which():
    first = flipped(1)[0]
    assert 15 < first.sum() < 45
    np.testing.assert_array_equal(flipped(1)[0], first)
    assert (flipped(1, seed=6)[0] != first).any()


def test_passes_within_an_epoch_count_too():
    order = Order(60, 20, **(SETTINGS | {"batches_per_epoch": 6, "shuffle": False}))
    flips = AlternatingFlip(order)
    np.testing.assert_array_equal(flips(3), ~flips(0))
    np.testing.assert_array_equal(flips(6), flips(0))


def flipped_batches():
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

    whole = flipped_batches()
    epochs = [epoch(whole) for _ in range(3)]
    turned = [np.sort(np.floor(images[images[:, 0] > images[:, 1], 0])) for images in epochs]
    assert len(turned[0]) + len(turned[1]) == 60
    assert not set(turned[0]) & set(turned[1])
    np.testing.assert_array_equal(turned[2], turned[0])
    resumed = flipped_batches()
    resumed.set_state(2)
    np.testing.assert_array_equal(epoch(resumed), epochs[2])
