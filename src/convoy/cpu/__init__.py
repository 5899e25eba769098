"""CPU kernels for every JAX program in the process."""

from convoy.cpu.status import Status
from convoy.cpu.switch import disable, enable, status

__all__ = ["Status", "disable", "enable", "status"]
