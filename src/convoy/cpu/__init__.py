"""CPU kernels for every JAX program in the process."""

from convoy.cpu.inference_fusion import fold, fuse
from convoy.cpu.registry import Status, disable, enable, fuses, status
from convoy.cpu.training_fusion import Fusion

__all__ = ["Fusion", "Status", "disable", "enable", "fold", "fuse", "fuses", "status"]
