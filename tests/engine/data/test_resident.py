import numpy as np
import pytest
from convoy.engine.data.chunks import Chunk, StepDivision
from convoy.engine.data.local_batch import fetcher
from convoy.engine.data.placement import Placement
from convoy.engine.data.resident import Resident
from convoy.keras_bridge import Batches


def make(samples=10, batch=3, **options):
    x = np.arange(samples, dtype="float32")
    return Resident((x, x * 10), batch, Placement(None), StepDivision(1), training=True, **options)


def read(chunk: Chunk):
    """Return the inputs of every step of a chunk."""
    fetch = fetcher(chunk, replicas=1)
    return [fetch(chunk.source, step)[0].tolist() for step in range(chunk.steps)]


def epoch(feed, limit=100):
    feed.begin_epoch()
    steps = []
    while chunk := feed.next(limit):
        assert chunk.steps <= limit
        steps += read(chunk)
    return steps


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_hands_out_all_samples_in_order(limit):
    assert epoch(make(), limit) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_targets_stay_with_their_inputs():
    feed = make(shuffle=True)
    feed.begin_epoch()
    chunk = feed.next(3)
    x, y = fetcher(chunk, replicas=1)(chunk.source, 1)
    np.testing.assert_array_equal(x * 10, y)


def test_shuffles_as_keras_does_epoch_by_epoch():
    x = np.arange(10, dtype="float32")
    np.random.seed(7)
    keras_order = [[b[0].tolist() for b in Batches(x, x, None, 3, shuffle=True)] for _ in range(2)]
    np.random.seed(7)
    feed = make(shuffle=True)
    assert [epoch(feed), epoch(feed)] == keras_order


def test_shuffles_inside_of_batches_as_keras_does():
    x = np.arange(10, dtype="float32")
    np.random.seed(7)
    keras_order = [b[0].tolist() for b in Batches(x, x, None, 3, shuffle="batch")]
    np.random.seed(7)
    assert epoch(make(shuffle="batch")) == keras_order


def test_steps_per_epoch_go_on_where_the_last_epoch_stopped():
    feed = make(batch=2, steps_per_epoch=2)
    assert feed.steps == 2
    assert [epoch(feed), epoch(feed)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_says_when_the_data_ends_before_the_epoch():
    feed = make(batch=2, steps_per_epoch=3)
    epoch(feed)
    with pytest.warns(UserWarning, match="ends after 2 of the 3 steps"):
        assert epoch(feed) == [[6, 7], [8, 9]]
    assert epoch(feed) == [[0, 1], [2, 3], [4, 5]]


def test_a_batch_larger_than_the_data_is_cut_to_it():
    assert epoch(make(batch=64)) == [list(range(10))]


def test_knows_the_shape_of_a_batch():
    feed = make(batch=4)
    feed.begin_epoch()
    assert [leaf.shape for leaf in feed.example()] == [(4,), (4,)]
