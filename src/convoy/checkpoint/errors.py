"""Errors of reading and writing checkpoints."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, found, or used."""


class DamagedError(CheckpointError):
    """A checkpoint differs from what was written: it is truncated, changed, or incomplete."""
