"""Event files hold records of `Event` messages, as TensorBoard reads them."""

import pytest
from convoy.data import records
from convoy.data.event_file import EventFile
from convoy.data.tensorflow_pb2 import Event, SessionLog


def events(folder):
    (path,) = folder.iterdir()
    return [Event.FromString(data) for data in records.read_all(path)]


def test_scalars_follow_the_version_and_can_be_read_at_once(tmp_path):
    file = EventFile(tmp_path)
    file.scalars(7, {"loss": 0.5, "accuracy": 0.25})
    version, scalars = events(tmp_path)
    assert version.file_version == "brain.Event:2"
    assert scalars.step == 7
    values = {value.tag: value.simple_value for value in scalars.summary.value}
    assert values == pytest.approx({"loss": 0.5, "accuracy": 0.25})
    assert scalars.wall_time >= version.wall_time > 0
    file.close()


def test_a_restart_drops_what_comes_after_its_step(tmp_path):
    file = EventFile(tmp_path)
    file.restart(3)
    file.close()
    _, restart = events(tmp_path)
    assert (restart.step, restart.session_log.status) == (4, SessionLog.START)


def test_names_are_in_the_order_of_creation(tmp_path):
    for _ in range(3):
        EventFile(tmp_path).close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(set(names)) == 3
    assert all(name.startswith("events.out.tfevents.") for name in names)
