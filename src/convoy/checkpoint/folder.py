"""The folder with the checkpoints of one run: listing, locking, reading and removal."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from convoy.atomic_file import UNFINISHED
from convoy.checkpoint import files, store
from convoy.checkpoint.errors import CheckpointError, DamagedError
from convoy.error_messages import system_reason

LOCK = ".lock"
_REMOVED = ".removed-"
_DAMAGED = "damaged-"
_NAME = re.compile(r"epoch-(\d{4,})-step-(\d{8,})")


class Position(NamedTuple):
    """The position of a run: the number of complete epochs, and of steps of the next one."""

    epoch: int
    step: int

    @property
    def name(self) -> str:
        return f"epoch-{self.epoch:04}-step-{self.step:08}"

    @classmethod
    def parse(cls, name: str) -> Position | None:
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2])) if match else None


class Folder:
    """A folder of checkpoints."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    def positions(self) -> list[Position]:
        """Return the positions of all checkpoints, damaged ones too, oldest first.

        Raises:
            CheckpointError: if the folder cannot be read now.
        """
        with files.errors_that_may_pass(self.path):
            if not self.path.is_dir():
                return []
            found = [Position.parse(entry.name) for entry in self.path.iterdir() if entry.is_dir()]
        return sorted(position for position in found if position)

    def at(self, position: Position) -> Path:
        return self.path / position.name

    def newest(self) -> tuple[Position, store.Checkpoint] | None:
        """Read the newest intact checkpoint, and warn about newer damaged ones.

        A checkpoint that cannot be read now, such as after an error of the disk, is not damaged:
        an earlier one is then not used in its place.

        Raises:
            CheckpointError: if there are checkpoints, but all are damaged, or one cannot be read.
        """
        positions = self.positions()
        for position in reversed(positions):
            try:
                checkpoint = store.read(self.at(position))
            except DamagedError as error:
                warnings.warn(f"{error} The checkpoint before it is used.", stacklevel=2)
                continue
            return position, checkpoint
        if positions:
            raise CheckpointError(
                f"All {len(positions)} checkpoints in {self.path} are damaged. Restore the folder "
                "from a copy, or pass another one to start a new run."
            )
        return None

    def open_for_writing(self) -> None:
        """Create the folder if needed, lock it, and remove temporary files of an earlier run.

        Raises:
            CheckpointError: if the folder cannot be written, or another run has locked it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise CheckpointError(
                f"Another run writes its checkpoints to {self.path}. Wait for it, or pass another "
                "folder."
            ) from error
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"{self.path} cannot be used for checkpoints: {system_reason(error)}. Pass a "
                "folder that can be written."
            ) from error
        for entry in self.path.iterdir():
            if entry.name.startswith((UNFINISHED, _REMOVED)):
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            # Closing is not enough: a process forked in the meantime holds the descriptor too.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def set_aside_after(self, position: Position | None) -> None:
        """Rename the damaged checkpoints that are newer than the one a run resumes from."""
        for newer in self.positions():
            if position is None or newer > position:
                target = self.path / f"{_DAMAGED}{newer.name}"
                shutil.rmtree(target, ignore_errors=True)
                try:
                    self.at(newer).rename(target)
                except OSError as error:
                    raise CheckpointError(
                        f"The damaged {self.at(newer)} cannot be renamed: {system_reason(error)}. "
                        "Pass a folder that can be written."
                    ) from error

    def write(self, position: Position, checkpoint: store.Checkpoint) -> None:
        """Write a checkpoint, unless there is one of this position."""
        if not self.at(position).exists():
            store.write(self.at(position), checkpoint)

    def keep_only(self, kept: Iterable[Position]) -> None:
        """Remove all other checkpoints. Each is renamed first, so readers never see a part."""
        for position in set(self.positions()) - set(kept):
            removed = self.path / f"{_REMOVED}{position.name}"
            self.at(position).rename(removed)
            shutil.rmtree(removed, ignore_errors=True)


def find_checkpoint(path: Path) -> tuple[Path, store.Checkpoint] | None:
    """Return a checkpoint by its path, or the newest one in a folder, and its path."""
    if (path / store.MANIFEST).exists():
        return path, store.read(path)
    folder = Folder(path)
    newest = folder.newest()
    return None if newest is None else (folder.at(newest[0]), newest[1])
