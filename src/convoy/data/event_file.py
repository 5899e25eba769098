"""Writer of scalars in TensorBoard's event files: records of `Event` messages."""

import socket
import time
from collections.abc import Mapping
from pathlib import Path

from convoy.data.records import frame
from convoy.data.tensorflow_pb2 import Event, SessionLog, Summary


class EventFile:
    """A new event file in a folder, open for writing."""

    def __init__(self, folder: Path) -> None:
        # TensorBoard reads files in the order of their names, so the name has the full time.
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        name = f"events.out.tfevents.{seconds}.{nanoseconds:09}.{socket.gethostname()}"
        self._file = (folder / name).open("xb")
        self._write(Event(file_version="brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of one step."""
        entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(Event(step=step, summary=Summary(value=entries)))

    def restart(self, step: int) -> None:
        """Make readers discard what earlier files of the folder hold after a step."""
        self._write(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._file.write(frame(event.SerializeToString()))
        self._file.flush()
