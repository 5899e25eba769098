"""CPU kernels for every JAX program in the process."""

from convoy.cpu.chains import fuse
from convoy.cpu.folding import fold
from convoy.cpu.fusion import Fusion
from convoy.cpu.registry import disable, enable, fuses, status
from convoy.cpu.status import Status

__all__ = ["Fusion", "Status", "disable", "enable", "fold", "fuse", "fuses", "status"]
