"""Scalars in the files that TensorBoard reads.

An event file is a row of records: length, checksum of the length, data, checksum of the data. The
data are protocol buffers of the type `tensorflow.Event`, of which three fields are needed.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from convoy.data.protobuf import field, varint
from convoy.data.records import frame


class EventFile:
    """A new file of scalars in a folder, open for writing."""

    def __init__(self, folder: Path) -> None:
        # Readers go through files by name, so it has all digits of the time.
        seconds, rest = divmod(time.time_ns(), 1_000_000_000)
        name = f"events.out.tfevents.{seconds}.{rest:09}.{socket.gethostname()}"
        self._file = (folder / name).open("xb")
        self._write(field(3, b"brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write some values of one step."""
        summary = b"".join(
            field(1, field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in values.items()
        )
        self._write(b"\x10" + varint(step) + field(5, summary))

    def restart(self, step: int) -> None:
        """Have readers forget what earlier files of the folder have after a step."""
        started = b"\x08\x01"
        self._write(b"\x10" + varint(step + 1) + field(7, started))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        self._file.write(frame(b"\x09" + struct.pack("<d", time.time()) + event))
        self._file.flush()
