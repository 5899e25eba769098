import itertools

import pytest
from convoy.serving import batch_sizes
from convoy.serving.batch_sizes import BatchSizes, measure


def test_a_batch_is_filled_up_where_that_takes_hardly_longer():
    sizes = BatchSizes({1: 1.0, 2: 1.1, 4: 1.2, 8: 1.3})
    assert [sizes.cover(n) for n in (1, 2, 3, 5, 8)] == [(1,), (2,), (4,), (8,), (8,)]


def test_a_batch_is_divided_where_every_sample_has_its_cost():
    sizes = BatchSizes({1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0})
    assert [sizes.cover(n) for n in (1, 3, 6, 7, 8)] == [(1,), (2, 1), (4, 2), (4, 2, 1), (8,)]


def test_a_size_that_is_slow_on_this_machine_is_not_used():
    assert BatchSizes({1: 1.0, 2: 2.0, 4: 9.0}).cover(4) == (2, 2)


def test_small_models_are_called_as_seldom_as_possible():
    assert BatchSizes({1: 1e-6, 2: 2e-6, 4: 4e-6}).cover(3) == (4,)


@pytest.mark.parametrize(
    ("seconds", "efficient"),
    [
        ({1: 1.0, 2: 1.1, 4: 1.2}, 4),
        ({1: 1.0, 2: 1.9, 4: 3.8}, 1),
        ({1: 1.0, 2: 1.6, 4: 3.1}, 2),
        ({1: 1e-6, 2: 2e-6, 4: 4e-6}, 4),
    ],
)
def test_requests_are_joined_as_far_as_that_pays(seconds, efficient):
    assert BatchSizes(seconds).efficient == efficient


def test_what_is_more_than_the_largest_size_takes_several():
    assert BatchSizes({1: 1.0, 4: 2.0}).cover(9) == (4, 4, 1)


def test_sizes_above_the_limit_are_not_used():
    assert BatchSizes({1: 1.0, 2: 1.1, 4: 1.2}, limit=3).cover(4) == (2, 2)
    assert BatchSizes({4: 1.0, 8: 1.0}, limit=2).cover(1) == (4,)


@pytest.mark.parametrize("seconds", [{1: 3.0, 2: 4.0, 5: 6.0}, {2: 1.0, 3: 1.7}, {1: 1.0, 6: 2.5}])
def test_no_choice_takes_less_time(seconds):
    sizes = BatchSizes(seconds)
    for samples in range(1, sizes.largest + 1):
        choices = (
            choice
            for count in range(1, samples + 1)
            for choice in itertools.combinations_with_replacement(seconds, count)
            if sum(choice) >= samples
        )
        fastest = min(sum(seconds[size] for size in choice) for choice in choices)
        found = sizes.cover(samples)
        assert sum(found) >= samples
        assert sum(seconds[size] for size in found) == pytest.approx(fastest)


def test_a_machine_that_is_busy_for_a_while_is_not_taken_for_a_slow_size(monkeypatch):
    now = 0.0

    def run(size):
        nonlocal now
        busy = 1.0 <= now < 4.0
        now += (3 if busy else 1) * size / 10

    monkeypatch.setattr(batch_sizes.time, "perf_counter", lambda: now)
    seconds = measure(run, [1, 2, 4, 8])
    assert seconds == pytest.approx({1: 0.1, 2: 0.2, 4: 0.4, 8: 0.8})
    assert now > 4.0
    assert measure(run, []) == {}
