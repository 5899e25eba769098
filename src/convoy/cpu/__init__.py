"""CPU kernels for every JAX program in the process."""

from convoy.cpu.chains import fuse
from convoy.cpu.folding import fold
from convoy.cpu.fusion import Fusion
from convoy.cpu.status import Status
from convoy.cpu.switch import disable, enable, fuses, status

__all__ = ["Fusion", "Status", "disable", "enable", "fold", "fuse", "fuses", "status"]
