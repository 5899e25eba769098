"""Volumes come back as they were written, and what is wrong with a file is said with its name."""

import numpy as np
import pytest
from convoy.data import examples, records
from convoy.data.records import DamagedDataError
from tests.examples.cosmoflow.record_files import SHAPE, targets, volume, write_volumes

from cosmoflow import volume_files
from cosmoflow.volume_files import RandomVolumes, find_volumes, staged


def read(volumes, index):
    out = np.empty(volumes.shape, np.float32)
    return out, volumes.read(index, out)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("per_file", [1, 3])
def test_every_sample_is_read_in_any_order(tmp_path, compressed, per_file):
    write_volumes(tmp_path, 2, per_file, compressed=compressed)
    volumes = find_volumes(
        tmp_path, 2 * per_file, SHAPE, 4, samples_per_file=per_file, apply_log=True
    )
    assert len(volumes) == 2 * per_file
    for index in reversed(range(len(volumes))):
        found, its_targets = read(volumes, index)
        np.testing.assert_allclose(found, np.log1p(volume(index).astype(np.float32)), rtol=1e-6)
        np.testing.assert_array_equal(its_targets, targets(index))


def test_records_have_the_format_of_the_public_dataset():
    data = volume_files.encode(np.array([1, -2, 300], np.int16), [0.5, -1, 0, 1])
    assert examples.decode(data, {"x", "y"}) == {
        "x": [b"\x01\x00\xfe\xff\x2c\x01"],
        "y": [0.5, -1.0, 0.0, 1.0],
    }


def test_without_the_logarithm_a_volume_is_divided_by_its_mean(tmp_path):
    write_volumes(tmp_path, 1)
    found, _ = read(find_volumes(tmp_path, 1, SHAPE, 4), 0)
    counts = volume(0).astype(np.float64)
    np.testing.assert_allclose(found, counts / counts.mean(), rtol=1e-6)
    empty = np.empty(SHAPE, np.float32)
    volume_files.normalise(np.zeros(SHAPE, np.int16), empty, apply_log=False)
    assert not empty.any()


def test_the_mean_of_a_volume_can_be_subtracted(tmp_path):
    write_volumes(tmp_path, 1)
    found, _ = read(find_volumes(tmp_path, 1, SHAPE, 4, apply_log=True, subtract_mean=True), 0)
    logarithm = np.log1p(volume(0).astype(np.float64))
    np.testing.assert_allclose(found, logarithm - logarithm.mean(), atol=1e-6)


def test_too_few_files_are_reported_with_their_folder(tmp_path):
    write_volumes(tmp_path / "train", 3)
    with pytest.raises(ValueError, match=r"train has 3 files .* 5 samples need 5\. Use 3"):
        find_volumes(tmp_path / "train", 5, SHAPE, 4)
    with pytest.raises(ValueError, match=r"5 samples do not fill files of samples_per_file 2"):
        find_volumes(tmp_path / "train", 5, SHAPE, 4, samples_per_file=2)
    with pytest.raises(ValueError, match=r"There is no folder .*validation\. Set data\.data_dir"):
        find_volumes(tmp_path / "validation", 1, SHAPE, 4)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"shape": (4, 4, 4, 4)}, r"a00000\.tfrecord, record 0: its volume has 256 bytes.* 512"),
        ({"target_size": 3}, r"a00000\.tfrecord, record 0: it has 4 targets instead of 3"),
        ({"samples_per_file": 2}, r"a00000\.tfrecord has 1 records, but data\.samples_per_file"),
    ],
)
def test_files_of_another_shape_are_refused_when_they_are_found(tmp_path, settings, problem):
    write_volumes(tmp_path, 2)
    with pytest.raises(DamagedDataError, match=problem):
        find_volumes(tmp_path, 2, **({"shape": SHAPE, "target_size": 4} | settings))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff\xff", r"it is not a tf\.train\.Example"),
        (examples.encode({"y": [0.0] * 4}), "it has no volume: no feature 'x'"),
        (examples.encode({"x": [3]}), "it has no volume: no feature 'x'"),
        (examples.encode({"x": [bytes(256)], "y": [1, 2, 3, 4]}), "it has 4 targets"),
    ],
)
def test_records_with_other_features_are_refused(tmp_path, data, problem):
    records.write_file(tmp_path / "one.tfrecord", [data])
    with pytest.raises(DamagedDataError, match=rf"one\.tfrecord, record 0: {problem}"):
        find_volumes(tmp_path, 1, SHAPE, 4)


def test_a_truncated_file_is_named(tmp_path):
    write_volumes(tmp_path, 2, compressed=True)
    volumes = find_volumes(tmp_path, 2, SHAPE, 4)
    volumes.files[1].write_bytes(volumes.files[1].read_bytes()[:100])
    with pytest.raises(DamagedDataError, match=r"a00001\.tfrecord\.gz, record 0: "):
        read(volumes, 1)
    volumes.files[1].unlink()
    with pytest.raises(
        DamagedDataError, match=r"a00001\.tfrecord\.gz cannot be read: No such .* Copy the"
    ):
        read(volumes, 1)


def test_staged_files_are_temporary_copies(tmp_path):
    write_volumes(tmp_path / "slow", 4)
    volumes = find_volumes(tmp_path / "slow", 4, SHAPE, 4)
    with staged(volumes, [1, 3], tmp_path / "fast") as copies:
        assert [path.parent == volumes.files[0].parent for path in copies.files] == [1, 0, 1, 0]
        assert all(tmp_path / "fast" in copies.files[number].parents for number in (1, 3))
        for index in range(4):
            np.testing.assert_array_equal(read(copies, index)[0], read(volumes, index)[0])
    assert list((tmp_path / "fast").iterdir()) == []
    volumes.files[2].unlink()
    with pytest.raises(ValueError, match=r"a00002\.tfrecord cannot be copied .*No such file"):
        staged(volumes, [2], None).__enter__()


@pytest.mark.parametrize(("samples", "shape"), [(50, (2, 2, 2, 1)), (50, (8, 8, 8, 4))])
def test_random_volumes_are_all_different(samples, shape):
    volumes = RandomVolumes(samples, shape, 4, seed=3)
    found = [read(volumes, index) for index in range(samples)]
    assert len({volume.tobytes() for volume, _ in found}) == samples
    assert len({row.tobytes() for _, row in found}) == samples
    assert min(volume.min() for volume, _ in found) >= 0
    assert max(volume.max() for volume, _ in found) < 1
    again, _ = read(RandomVolumes(samples, shape, 4, seed=3), 7)
    np.testing.assert_array_equal(again, found[7][0])
