"""The checkpoints of one run, in one folder: which there are, which is the newest whole one."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from convoy.checkpoint import store
from convoy.checkpoint.errors import CheckpointError, DamagedError

LOCK = ".lock"
_REMOVED = ".removed-"
_DAMAGED = "damaged-"
_NAME = re.compile(r"epoch-(\d{4,})-step-(\d{8,})")


class Position(NamedTuple):
    """Where a run is: whole epochs that are done, and steps of the one after."""

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
        """Return where checkpoints were taken, oldest first; damaged ones are among them."""
        if not self.path.is_dir():
            return []
        found = (Position.parse(entry.name) for entry in self.path.iterdir() if entry.is_dir())
        return sorted(position for position in found if position)

    def at(self, position: Position) -> Path:
        return self.path / position.name

    def newest(self) -> tuple[Position, store.Content] | None:
        """Read the newest checkpoint that is whole; say so of those that are not.

        Raises:
            CheckpointError: if there are checkpoints, but none that is whole.
        """
        positions = self.positions()
        for position in reversed(positions):
            try:
                content = store.read(self.at(position))
            except DamagedError as error:
                warnings.warn(f"{error} The checkpoint before it is used.", stacklevel=2)
                continue
            return position, content
        if positions:
            raise CheckpointError(
                f"None of the {len(positions)} checkpoints in {self.path} is whole. Restore the "
                "folder from a copy, or pass another one to begin anew."
            )
        return None

    def open_for_writing(self) -> None:
        """Make the folder if need be, keep other runs out, and clear what a dead one left.

        Raises:
            CheckpointError: if it cannot be written, or another run writes there.
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
                f"{self.path} cannot be used for checkpoints: {error.strerror}. Pass a folder that "
                "can be written."
            ) from error
        for entry in self.path.iterdir():
            if entry.name.startswith((store.UNFINISHED, _REMOVED)):
                shutil.rmtree(entry, ignore_errors=True)

    def close(self) -> None:
        """Let other runs write here."""
        if self._lock is not None:
            # Not only closed: a process that was forked meanwhile has the descriptor as well.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def set_aside_after(self, position: Position | None) -> None:
        """Rename what is newer than the checkpoint that a run goes on from: it is damaged."""
        for newer in self.positions():
            if position is None or newer > position:
                target = self.path / f"{_DAMAGED}{newer.name}"
                shutil.rmtree(target, ignore_errors=True)
                self.at(newer).rename(target)

    def write(self, position: Position, content: store.Content) -> None:
        """Add a checkpoint, unless this very one is there."""
        if not self.at(position).exists():
            store.write(self.at(position), content)

    def keep_only(self, kept: Iterable[Position]) -> None:
        """Remove all other checkpoints; a reader sees each of them whole or not at all."""
        for position in set(self.positions()) - set(kept):
            removed = self.path / f"{_REMOVED}{position.name}"
            self.at(position).rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
