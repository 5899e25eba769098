"""The compilers for TPUs and GPUs: check that they are installed, and open a target with them."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from importlib import metadata

import jax
from convoy.compile.failures import TargetError
from convoy.compile.targets import GPUS, Target, gpu_configuration
from convoy.compile_target import CompileTarget
from convoy.error_messages import first_line
from jax.experimental import topologies

CUDA_TOOLS = ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-cuda-cupti-cu12")
CUDA_PLUGINS = ("jax-cuda12-plugin", "jax-cuda12-pjrt")
# By default, libtpu queries Google's metadata server for its machine, and only one process can load
# it. Both are only needed for real chips.
TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}
# Autotuning runs candidates on the device.
GPU_OPTIONS = {"xla_gpu_autotune_level": 0}


def open_target(target: Target) -> CompileTarget:
    """Return the devices of a target.

    Raises:
        TargetError: if its compiler is not installed or belongs to another JAX, or if there is no
            such topology.
    """
    check_installed(target.platform)
    # Computations outside of programs run on this machine.
    jax.config.update("jax_platforms", "cpu")
    if target.platform == "tpu":
        os.environ.update(TPU_ENVIRONMENT)
    try:
        with compiler_output_hidden():
            devices = _tpus(target) if target.platform == "tpu" else _gpus(target)
    except (jax.errors.JaxRuntimeError, NotImplementedError, RuntimeError) as error:
        reason = first_line(error)
        raise TargetError(f"--target {target.name}: {reason}") from None
    return CompileTarget(target.name, devices, target.memory, target.flops, target.bandwidth)


def compiler_options(platform: str) -> dict[str, str | bool | int]:
    """Return the options with which programs are compiled for a target."""
    return dict(GPU_OPTIONS) if platform == "gpu" else {}


def _tpus(target: Target) -> tuple[jax.Device, ...]:
    shape = "x".join(map(str, target.shape))
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if target.devices == 1 else {}
    found = topologies.get_topology_desc(f"{target.kind}:{shape}", platform="tpu", **bounds)
    return tuple(found.devices)


def _gpus(target: Target) -> tuple[jax.Device, ...]:
    hosts, per_host = target.shape
    found = topologies.get_topology_desc(
        platform="cuda",
        topology=f"1x{hosts}x{per_host}",
        target_config=gpu_configuration(GPUS[target.kind]),
    )
    return tuple(found.devices)


def check_installed(platform: str) -> None:
    """Check that the compiler for a platform is installed, in the version for this JAX.

    Raises:
        TargetError: with the command that installs it.
    """
    if platform == "tpu":
        needed = {"libtpu": _version_of_libtpu()}
        command = f"pip install 'jax[tpu]=={jax.__version__}'"
    else:
        needed = dict.fromkeys(CUDA_PLUGINS, jax.__version__) | dict.fromkeys(CUDA_TOOLS, "*")
        command = f"pip install 'jax[cuda12-local]=={jax.__version__}' {' '.join(CUDA_TOOLS)}"
    for package, version in needed.items():
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise TargetError(
                f"Compiling for a {platform.upper()} needs the package {package}, which is not "
                f"installed. Install it with: {command}"
            ) from None
        if not _matches(found, version):
            raise TargetError(
                f"{package} {found} does not fit JAX {jax.__version__}, which needs {version}. "
                f"Install it with: {command}"
            )


def _version_of_libtpu() -> str:
    """Return the version that the installed JAX names in its requirements, such as `0.0.42.*`."""
    for requirement in metadata.requires("jax") or ():
        if found := re.match(r"libtpu\s*==\s*([\w.*]+)", requirement):
            return found[1]
    return "*"


def _matches(version: str, pattern: str) -> bool:
    if not pattern.endswith("*"):
        return version == pattern
    prefix = pattern.removesuffix("*").removesuffix(".")
    return not prefix or version == prefix or version.startswith(f"{prefix}.")


@contextlib.contextmanager
def compiler_output_hidden() -> Iterator[None]:
    """Hide the compilers' output on standard output and standard error in the block.

    They are native libraries, so the file descriptors are redirected. Errors arrive as exceptions.
    """
    saved = [os.dup(number) for number in (1, 2)]
    with tempfile.TemporaryFile() as hidden:
        for number in (1, 2):
            os.dup2(hidden.fileno(), number)
        try:
            yield
        finally:
            for number, original in zip((1, 2), saved, strict=True):
                os.dup2(original, number)
                os.close(original)
