"""Atomic checkpoints of runs, and bit-exact resumption from them."""

from convoy.checkpoint.callback import Checkpoints
from convoy.checkpoint.errors import CheckpointError, DamagedError
from convoy.checkpoint.preemption import EXIT_STATUS

__all__ = ["EXIT_STATUS", "CheckpointError", "Checkpoints", "DamagedError"]
