"""Batches that worker processes make are those that one process would make."""

import os
import signal

import numpy as np
import pytest
from convoy.data.augment import Transformation
from convoy.data.batches import Order, SequentialOrder
from convoy.data.catalog import DatasetInfo
from convoy.data.image_batches import BatchRequest, ImageBatches, ImageBatchJob
from convoy.data.image_files import find_images
from convoy.data.records import DamagedDataError

from .pictures import write_folders

pytestmark = pytest.mark.integration

INFO = DatasetInfo("imagenet", 12, 6, (32, 32, 3), 3, "imagenet", flip=True)


def training(folder, workers=0, on_damage="skip", said=None, **transformation):
    files = find_images(folder, "train")
    make = ImageBatchJob(
        files,
        4,
        Transformation(INFO, **({"output": "bytes"} | transformation)),
        training=True,
        flip=True,
        on_damage=on_damage,
    )
    order = Order(len(files), 4, batches_per_epoch=3, shuffle=True, seed=7)
    return ImageBatches(make, order, 3, workers, (said if said is not None else []).append)


def epochs(batches, count):
    found = []
    for _ in range(count):
        found += [batches[number] for number in range(batches.num_batches)]
        batches.on_epoch_end()
    return found


def assert_same(actual, expected):
    for (x, y), (wanted_x, wanted_y) in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(x, wanted_x)
        np.testing.assert_array_equal(y, wanted_y)


@pytest.fixture(scope="module")
def worked(folders):
    """Batches that two processes make."""
    batches = training(folders, workers=2)
    yield batches
    batches.close()


def test_workers_make_what_one_process_makes(folders, worked):
    worked.set_state(0)
    assert_same(epochs(worked, 3), epochs(training(folders), 3))


def test_workers_go_on_at_any_batch(folders, worked):
    whole = epochs(training(folders), 4)
    worked.set_state(2)
    assert_same([worked[1], worked[2]], whole[7:9])
    worked.set_state(0)
    assert_same([worked[0]], whole[:1])


def test_batches_are_bytes_of_all_classes_that_differ_from_epoch_to_epoch(folders):
    first, second = (
        np.concatenate(part) for part in zip(*epochs(training(folders), 1), strict=True)
    )
    assert (first.dtype, first.shape) == (np.uint8, (12, 32, 32, 3))
    assert sorted(second) == [0] * 4 + [1] * 4 + [2] * 4
    # Each image has the colour of its class.
    assert (first.mean((1, 2)).argmax(1) == second).all()
    six = epochs(training(folders), 2)
    assert any((six[n][0] != six[n + 3][0]).any() for n in range(3))


def test_those_are_mirrored_that_are_said_to_be(folders):
    files = find_images(folders, "train")
    make = ImageBatchJob(files, 4, Transformation(INFO, "bytes"), training=True)
    mirrored = np.array([True, False, False, True])
    plain, turned = np.empty((2, *make.shape), make.dtype)
    make.run(BatchRequest(np.arange(4), (1,)), plain)
    make.run(BatchRequest(np.arange(4), (1,), mirrored), turned)
    np.testing.assert_array_equal(turned[mirrored], plain[mirrored][:, :, ::-1])
    np.testing.assert_array_equal(turned[~mirrored], plain[~mirrored])


def test_normalised_numbers_and_mixed_labels(folders):
    x, y = training(folders, output="normalised", mixup=0.5)[0]
    assert (x.dtype, y.dtype, y.shape) == (np.float32, np.float32, (4, 3))
    assert abs(x.mean()) < 2
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-6)


def test_held_out_images_come_once_and_in_order(folders):
    files = find_images(folders, "test")
    make = ImageBatchJob(files, 4, Transformation(INFO, "bytes"), training=False)
    order = SequentialOrder(len(files), 4)
    batches = ImageBatches(make, order, order.num_batches, 0)
    for found in (epochs(batches, 1), epochs(batches, 1)):
        assert [len(x) for x, _ in found] == [4, 2]
        assert np.concatenate([y for _, y in found]).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    folder = write_folders(tmp_path_factory.mktemp("damaged"))
    bad = folder / "train" / "n03" / "n03_3.JPEG"
    bad.write_bytes(bad.read_bytes()[:-500])
    return folder


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_image_is_skipped_counted_and_named(damaged, workers):
    said = []
    batches = training(damaged, workers, said=said)
    found = epochs(batches, 2)
    batches.close()
    assert len(said) == len(batches.damaged) == 1
    assert "n03_3.JPEG: it is a JPEG that ends before its last pixel" in said[0]
    assert all(len(y) == 4 for _, y in found)
    # The image after the last one is the first, of class 0.
    assert np.bincount(np.concatenate([y for _, y in found[:3]])).tolist() == [5, 4, 3]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_image_stops_a_run_if_asked(damaged, workers):
    batches = training(damaged, workers, on_damage="stop")
    with pytest.raises(
        DamagedDataError,
        match=r"n03_3\.JPEG: it is a JPEG that ends .*\. Pass --damaged-images skip",
    ):
        epochs(batches, 1)
    batches.close()


@pytest.mark.slow
def test_a_worker_that_is_killed_is_an_error(folders):
    batches = training(folders, workers=1)
    batches[0]
    children = [
        int(name)
        for name in os.listdir("/proc")
        if name.isdigit() and parent_of(name) == batches._prefetcher._pool._process.pid
    ]
    assert len(children) == 1
    os.kill(children[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="A worker process that makes batches exited"):
        epochs(batches, 5)


def parent_of(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
