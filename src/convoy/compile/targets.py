"""Targets by name: the kinds of devices that programs can be compiled for, and their number."""

import difflib
import itertools
import re
from dataclasses import dataclass
from math import prod

from convoy.compile.failures import TargetError
from convoy_command.parser import suggestion

GIB = 2**30
EXAMPLES = "tpu:v5e:4x4 or gpu:h100:8"
# The fraction of a GPU's memory that JAX uses by default.
GPU_SHARE = 0.75


@dataclass(frozen=True)
class TpuKind:
    """A generation of TPUs.

    Attributes:
        axes: number of axes of its topologies.
        memory: bytes of a chip's memory that programs can use, as XLA reports them.
        bandwidth: bytes per second of its memory, by Google's page about the generation.
        flops: bfloat16 operations per second of a chip, by the same page.
        largest_host: maximum number of chips on a single host; several hosts have `TPU_HOST` each.
        largest_slice: maximum number of chips that are connected by links.
    """

    axes: int
    memory: int
    bandwidth: float
    flops: float
    largest_host: int
    largest_slice: int


@dataclass(frozen=True)
class GpuKind:
    """A model of NVIDIA's GPUs, by its data sheet and CUDA's table of compute capabilities.

    Attributes:
        title: its full name.
        capability: CUDA's compute capability.
        memory: bytes of memory.
        bandwidth: bytes per second of its memory.
        flops: dense 16-bit operations per second of its tensor cores.
        cores: streaming multiprocessors.
        lanes: float32 lanes of each.
        threads: maximum number of threads on each.
        shared_memory: bytes of shared memory of each; a block can use 1 KiB less.
        cache: bytes of the second-level cache.
        clock: clock rate in GHz.
    """

    title: str
    capability: tuple[int, int]
    memory: int
    bandwidth: float
    flops: float
    cores: int
    lanes: int
    threads: int
    shared_memory: int
    cache: int
    clock: float


TPU_HOST = 4
TPUS = {
    "v5e": TpuKind(2, round(15.75 * GIB), 0.819e12, 197e12, 8, 256),
    "v5p": TpuKind(3, round(95.74 * GIB), 2.765e12, 459e12, 4, 6144),
    "v6e": TpuKind(2, round(31.25 * GIB), 1.64e12, 918e12, 8, 256),
}
_KIB, _MIB = 2**10, 2**20
GPUS = {
    "a100": GpuKind(
        "NVIDIA A100-SXM4-80GB", (8, 0), 80 * GIB, 2.039e12, 312e12, 108, 64, 2048, 164 * _KIB,
        40 * _MIB, 1.41,
    ),
    "h100": GpuKind(
        "NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB, 3.35e12, 989e12, 132, 128, 2048, 228 * _KIB,
        50 * _MIB, 1.98,
    ),
    "h200": GpuKind(
        "NVIDIA H200", (9, 0), 141_000_000_000, 4.8e12, 989e12, 132, 128, 2048, 228 * _KIB,
        50 * _MIB, 1.98,
    ),
    "l4": GpuKind(
        "NVIDIA L4", (8, 9), 24 * GIB, 0.3e12, 121e12, 58, 128, 1536, 100 * _KIB, 48 * _MIB, 2.04
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A number of devices of one kind.

    Attributes:
        name: the name, as the user gave it.
        platform: `"tpu"` or `"gpu"`.
        kind: the kind of device, a key of `TPUS` or `GPUS`.
        shape: numbers of chips along the axes of a TPU topology, or hosts and GPUs of each host.
    """

    name: str
    platform: str
    kind: str
    shape: tuple[int, ...]

    @property
    def devices(self) -> int:
        return prod(self.shape)

    @property
    def hosts(self) -> int:
        """Number of hosts, or of virtual machines in Google's cloud."""
        if self.platform == "gpu":
            return self.shape[0]
        chips = TPUS[self.kind].largest_host
        return 1 if self.devices <= chips else self.devices // TPU_HOST

    @property
    def memory(self) -> int:
        """Bytes of a device's memory that programs can use."""
        if self.platform == "tpu":
            return TPUS[self.kind].memory
        return round(GPUS[self.kind].memory * GPU_SHARE)

    @property
    def flops(self) -> float:
        """Highest number of 16-bit operations per second of a device."""
        return (TPUS | GPUS)[self.kind].flops

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a device's memory."""
        return (TPUS | GPUS)[self.kind].bandwidth


def parse_target(name: str) -> Target:
    """Return the target of a name.

    Raises:
        TargetError: if there is no such target.
    """
    platform, _, rest = name.strip().lower().partition(":")
    kind, _, size = rest.partition(":")
    kinds = {"tpu": list(TPUS), "gpu": list(GPUS)}.get(platform)
    if kinds is None or not kind or not size:
        raise TargetError(
            f"--target {name} is not a target. Pass a platform, a kind and a number of devices, "
            f"such as {EXAMPLES}.{_nearest(name)}"
        )
    if kind not in kinds:
        known = ", ".join(kinds)
        raise TargetError(
            f"--target {name}: {kind!r} is not one of {known}{suggestion(kind, kinds)}"
        )
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size):
        raise TargetError(f"--target {name}: {size!r} is not a size. Pass for example {EXAMPLES}.")
    shape = tuple(map(int, size.split("x")))
    return Target(name, platform, kind, _checked_shape(name, platform, kind, shape))


def _nearest(name: str) -> str:
    """Return a suggestion for a name without a known platform."""
    kinds = dict.fromkeys(TPUS, "tpu") | dict.fromkeys(GPUS, "gpu")
    for part, rest in itertools.pairwise([*name.strip().lower().split(":"), ""]):
        if (near := difflib.get_close_matches(part, kinds, 1)) and rest:
            return f" Did you mean {kinds[near[0]]}:{near[0]}:{rest}?"
    return ""


def _checked_shape(name: str, platform: str, kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if platform == "gpu":
        if len(shape) > 2:
            raise TargetError(
                f"--target {name} has {len(shape)} numbers. Pass the GPUs of one host "
                f"({platform}:{kind}:8), or hosts and the GPUs of each ({platform}:{kind}:4x8)."
            )
        return shape if len(shape) == 2 else (1, *shape)
    axes = TPUS[kind].axes
    if len(shape) != axes:
        example = {2: "4x4", 3: "4x4x4"}[axes]
        raise TargetError(
            f"--target {name} has {len(shape)} axes, but a topology of {kind} has {axes}. Pass for "
            f"example tpu:{kind}:{example}."
        )
    if prod(shape) > (largest := TPUS[kind].largest_slice):
        raise TargetError(
            f"--target {name}: a slice of {kind} has at most {largest:,} chips, but "
            f"{'x'.join(map(str, shape))} are {prod(shape):,}. Pass a smaller one; for several "
            "slices, use convoy plan --devices."
        )
    if prod(shape) > 1 and any(size % 2 for size in shape[:2]):
        raise TargetError(
            f"--target {name}: a host has 2x2 chips, which do not divide "
            f"{'x'.join(map(str, shape))}. Pass even sizes, or {'x'.join('1' * axes)} for one chip."
        )
    return shape


def gpu_configuration(kind: GpuKind) -> str:
    """Return the description of a GPU for XLA: a `GpuTargetConfigProto` in text form."""
    major, minor = kind.capability
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: {kind.threads}
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  registers_per_core_limit: {2**16}
  registers_per_block_limit: {2**16}
  shared_memory_per_block: {48 * _KIB}
  shared_memory_per_block_optin: {kind.shared_memory - _KIB}
  shared_memory_per_core: {kind.shared_memory}
  core_count: {kind.cores}
  fpus_per_core: {kind.lanes}
  clock_rate_ghz: {kind.clock}
  l2_cache_size: {kind.cache}
  memory_bandwidth: {round(kind.bandwidth)}
  device_memory_size: {kind.memory}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{kind.title}"
"""
