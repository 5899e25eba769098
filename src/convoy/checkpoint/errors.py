"""What can go wrong with a checkpoint."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, found, or used."""


class DamagedError(CheckpointError):
    """A checkpoint is not what was written: cut short, changed, or incomplete."""
