"""Every sample once an epoch, each process with files of its own, and workers change nothing."""

import numpy as np
import pytest
from convoy.data.records import DamagedDataError
from tests.examples.cosmoflow.record_files import SHAPE, targets, write_volumes

from cosmoflow.volume_batches import FileOrder, VolumeBatches, VolumeJob
from cosmoflow.volume_files import find_volumes


def epoch(order, number):
    batches = range(number * order.num_batches, (number + 1) * order.num_batches)
    return [order.indices(position).tolist() for position in batches]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("per_file", [1, 2])
def test_an_epoch_has_every_sample_once_in_its_own_order(shards, per_file):
    order = FileOrder(12, per_file, 2, replicas=2, shards=shards, shuffle=True, seed=5)
    first, second = epoch(order, 0), epoch(order, 1)
    for found in (first, second):
        assert sorted(np.concatenate(found).tolist()) == list(range(12 * per_file))
    assert first != second
    again = FileOrder(12, per_file, 2, replicas=2, shards=shards, shuffle=True, seed=5)
    assert epoch(again, 1) == second


def test_the_replicas_of_a_process_read_files_of_its_shard_only():
    order = FileOrder(12, 2, 3, replicas=4, shards=2, shuffle=True, seed=5)
    for number, chosen in enumerate(epoch(order, 3)):
        shard = order.shard_of(number)
        assert shard == number % 4 // 2
        assert {sample // 2 for sample in chosen} <= set(order.files_of(shard))


def test_without_shuffling_samples_follow_the_file_names():
    order = FileOrder(3, 2, 2, shuffle=False, seed=0)
    assert epoch(order, 0) == epoch(order, 1) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"shards": 2}, r"7 files do not divide over 2 processes\. Use the samples of 6 files"),
        (
            {"replicas": 2},
            r"7 samples are not a multiple of a step: 2 replicas x micro_ba",
        ),
    ],
)
def test_files_that_do_not_divide_are_refused(settings, problem):
    with pytest.raises(ValueError, match=problem):
        FileOrder(7, 1, 2, shuffle=True, seed=0, **settings)


def make(folder, workers, prefetch=4):
    volumes = find_volumes(folder, 6, SHAPE, 4, apply_log=True)
    order = FileOrder(6, 1, 2, shuffle=True, seed=1)
    return VolumeBatches(VolumeJob(volumes, 2), order, 3, workers, prefetch)


def test_workers_prepare_the_same_batches_as_one_process(tmp_path):
    write_volumes(tmp_path, 6, compressed=True)
    alone, worked = make(tmp_path, 0), make(tmp_path, 2, prefetch=3)
    for _ in range(2):
        for number in range(3):
            (x, y), (expected_x, expected_y) = worked[number], alone[number]
            np.testing.assert_array_equal(x, expected_x)
            np.testing.assert_array_equal(y, expected_y)
        alone.on_epoch_end()
        worked.on_epoch_end()
    worked.close()


def test_a_damaged_file_that_a_worker_reads_is_named(tmp_path):
    write_volumes(tmp_path, 6)
    bad = tmp_path / "univ_ics_2019-03_a00004.tfrecord"
    bad.write_bytes(bad.read_bytes()[:-30])
    batches = make(tmp_path, 1)
    with pytest.raises(DamagedDataError, match=r"a00004\.tfrecord, record 0: the file ends"):
        list(map(batches.__getitem__, range(3)))
    batches.close()


def test_targets_stay_with_their_volumes(tmp_path):
    write_volumes(tmp_path, 6)
    batches = make(tmp_path, 0)
    chosen = batches.order.indices(1)
    np.testing.assert_array_equal(batches[1][1], np.stack([targets(n) for n in chosen]))
