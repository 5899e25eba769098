import struct
from pathlib import Path

import keras
import pytest
from convoy.data.records import masked_checksum
from convoy.train.metrics import MetricsRow
from convoy.train.run_folder import RunFolder, find_checkpoints


def record(epoch, accuracy=0.5, phase="validation"):
    return MetricsRow(phase, int(10 * epoch), epoch, 1.25, accuracy, 100.0)


def read_records(path):
    content, records = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data = content[12 : 12 + length]
        assert struct.unpack("<I", content[8:12])[0] == masked_checksum(content[:8])
        assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked_checksum(data)
        records.append(data)
        content = content[16 + length :]
    return records


def test_events_are_whole_records_with_their_values(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open({"num-epochs": 3})
    folder.add(record(1.0))
    folder.close()
    (file,) = (tmp_path / "run").glob("events.out.tfevents.*")
    version, event = read_records(file)
    assert version.endswith(b"brain.Event:2")
    assert b"validation/accuracy\x15" + struct.pack("<f", 0.5) in event
    assert event[9:11] == b"\x10\x0a"  # the step, 10


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file cannot be used for a run: File exists"):
        RunFolder(tmp_path / "file").open({})
    with pytest.raises(ValueError, match="Pass an --output-dir that can be written"):
        RunFolder(tmp_path / "file/below").open({})


def test_checkpoints_are_found_by_epoch_not_by_name(tmp_path):
    for epoch in ("10.0", "9.0", "0.5"):
        (tmp_path / f"epoch_{epoch}.weights.h5").touch()
    (tmp_path / ".unfinished-epoch_11.0.weights.h5").touch()
    names = [path.name for path in find_checkpoints(tmp_path)]
    assert names == [f"epoch_{epoch}.weights.h5" for epoch in ("0.5", "9.0", "10.0")]


def test_only_what_the_run_has_written_is_removed(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    folder = RunFolder(tmp_path / "run", tmp_path / "checkpoints")
    saved = folder.save(model, 1 / 3)
    assert saved.name == "epoch_0.333333.weights.h5"
    kept = Path(tmp_path / "checkpoints" / "epoch_7.0.weights.h5")
    kept.write_bytes(saved.read_bytes())
    folder.remove_checkpoints()
    assert list((tmp_path / "checkpoints").iterdir()) == [kept]
