import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.engine.data.chunks import StepDivision
from convoy.engine.data.local_batch import fetcher
from convoy.engine.data.placement import AXIS, Placement
from convoy.engine.data.streamed import BLOCKS_IN_FLIGHT, Streamed
from convoy.keras_bridge import Batches

LARGE = 1 << 30


def batches_of(*sizes):
    start = 0
    for size in sizes:
        x = np.arange(start, start + size, dtype="float32")
        start += size
        yield x, x * 10


def make(*sizes, limit=4, budget=LARGE, replicas=1, training=False, steps=None):
    mesh = jax.sharding.Mesh(jax.devices()[:replicas], (AXIS,)) if replicas > 1 else None
    batches = Batches(batches_of(*sizes), None, None, None, steps)
    division = StepDivision(replicas, keeps_incomplete=not training)
    return Streamed(batches, Placement(mesh), division, budget, limit, batches_per_step=replicas)


def chunks(feed, limit=100, prefetch=False):
    feed.begin_epoch()
    while chunk := feed.next(limit):
        yield chunk
        if prefetch:
            feed.prefetch(limit)


def steps(feed, limit=100, prefetch=False):
    found = []
    for chunk in chunks(feed, limit, prefetch):
        fetch = fetcher(chunk, replicas=1)
        found += [fetch(chunk.source, step)[0].tolist() for step in range(chunk.steps)]
    return found


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_hands_out_all_batches_in_order(limit, prefetch):
    wanted = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10]]
    assert steps(make(2, 2, 2, 2, 2, 1), limit, prefetch) == wanted


def test_a_block_holds_batches_of_one_shape():
    assert [(c.micro_batch_samples, c.steps) for c in chunks(make(2, 2, 3, 3, 2))] == [
        (2, 2),
        (3, 2),
        (2, 1),
    ]


def test_a_short_block_has_the_shape_of_a_full_one():
    blocks = [chunk.source[0].shape for chunk in chunks(make(2, 2, 2, 2, 2))]
    assert blocks == [(4, 2), (4, 2)]


def test_blocks_stay_within_the_budget():
    one_step = 2 * 2 * 4
    feed = make(*[2] * 9, limit=1000, budget=3 * BLOCKS_IN_FLIGHT * one_step)
    assert [chunk.steps for chunk in chunks(feed)] == [3, 3, 3]


def test_a_batch_larger_than_the_budget_still_runs():
    assert [chunk.steps for chunk in chunks(make(2, 2, budget=1))] == [1, 1]


def test_reads_no_further_than_the_epoch():
    source = batches_of(*[2] * 10)
    feed = Streamed(
        Batches(source, None, None, None, 4), Placement(None), StepDivision(1), LARGE, 3
    )
    first = steps(feed, prefetch=True)
    assert first == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert steps(feed, prefetch=True)[0] == [8, 9]


def test_replicas_take_batches_in_turn():
    (chunk,) = chunks(make(2, 2, 2, 2, replicas=2))
    assert (chunk.micro_batch_samples, chunk.steps, chunk.sharded) == (4, 2, True)
    np.testing.assert_array_equal(chunk.source[0][:2], [[0, 1, 2, 3], [4, 5, 6, 7]])
    assert chunk.source[0].sharding.spec == jax.sharding.PartitionSpec(None, AXIS)


def test_what_does_not_fill_all_replicas_is_kept_for_every_one_of_them():
    found = [
        (c.micro_batch_samples, c.steps, c.sharded) for c in chunks(make(2, 2, 2, 1, replicas=2))
    ]
    assert found == [(4, 1, True), (2, 1, False), (1, 1, False)]


def test_what_does_not_fill_all_replicas_is_left_out_of_training_and_counted_once():
    feed = make(2, 2, 2, 1, replicas=2, training=True)
    with pytest.warns(UserWarning, match="3 samples of the epoch do not fill"):
        found = [(c.micro_batch_samples, c.steps) for c in chunks(feed)]
    assert found == [(4, 1)]


def test_one_replica_is_not_several_in_the_message_about_what_is_left_out():
    batches = Batches(batches_of(2, 2, 2), None, None, None, None)
    division = StepDivision(1, steps_per_update=2, keeps_incomplete=False)
    feed = Streamed(batches, Placement(None), division, LARGE, 4, batches_per_step=1)
    with pytest.warns(UserWarning, match="of 1 replica x 2 accumulated and are left out"):
        assert sum(chunk.steps for chunk in chunks(feed)) == 2


def test_looks_at_the_first_batch_before_it_moves():
    seen = []
    batches = Batches(batches_of(2, 2, 2), None, None, None)
    feed = Streamed(
        batches, Placement(None), StepDivision(1), LARGE, 4, inspect=lambda b: seen.append(b[0])
    )
    steps(feed)
    assert [s.tolist() for s in seen] == [[0, 1]]


def test_a_batch_that_does_not_divide_is_run_whole_and_said_once():
    mesh = jax.sharding.Mesh(jax.devices()[:2], (AXIS,))
    batches = Batches(batches_of(3, 3, 3, 3), None, None, None, None)
    feed = Streamed(batches, Placement(mesh), StepDivision(2), LARGE, 4)
    with pytest.warns(UserWarning, match="3 samples does not divide over 2 replicas") as said:
        found = [(c.micro_batch_samples, c.steps, c.sharded) for c in chunks(feed)]
    assert found == [(3, 4, False)]
    assert len(said) == 1


class Batched(keras.utils.PyDataset):
    """Arrays as a data set of batches."""

    def __init__(self, x, y, batch):
        super().__init__()
        self.x, self.y, self.batch = x, y, batch

    @property
    def num_batches(self):
        return -(-len(self.x) // self.batch)

    def __getitem__(self, index):
        rows = slice(index * self.batch, (index + 1) * self.batch)
        return self.x[rows], self.y[rows]


def test_a_data_set_gives_each_replica_batches_of_its_own(rng):
    x, y = rng.normal(size=(12, 3)).astype("float32"), rng.normal(size=(12, 2)).astype("float32")

    def trained(*data, **settings):
        keras.utils.set_random_seed(0)
        with convoy.Strategy(devices=2).scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        model.fit(*data, shuffle=False, verbose=0, **settings)
        return model.get_weights()

    from_arrays = trained(x, y, batch_size=2)
    for ours, theirs in zip(trained(Batched(x, y, 2)), from_arrays, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
