"""Optional parts of the environment: tests that need a missing one are skipped.

The summary of a run lists each missing part once, with the number of tests that were skipped for it
and the command that installs it.

    @parts.needs("Chromium")
    def test_the_page_is_drawn(): ...
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from convoy.cpu import library
from tests.browser import BROWSER

ROOT = Path(__file__).parents[1]
DEV = "pip install -e '.[dev]'"
INTEROP = "pip install -e '.[dev,interop]'"
TARGETS = "make test-targets"
CLIENTS = "make test-clients"
KERNELS = f"apt-get install g++, then {DEV}"
NEEDS = "needs "


@dataclass(frozen=True)
class Part:
    """A package, a program or a library.

    Attributes:
        install: command that installs it.
        is_present: check for it.
    """

    install: str
    is_present: Callable[[], object]


def _module(name: str) -> Callable[[], object]:
    return partial(find_spec, name)


def find_program(name: str) -> str | None:
    """Return the path of a program, which may be in the environment of this Python."""
    return shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def _program(name: str) -> Callable[[], object]:
    return partial(find_program, name)


PARTS = {
    "Chromium": Part("apt-get install chromium", lambda: BROWSER),
    "bash": Part("apt-get install bash", _program("bash")),
    "grain": Part(DEV, _module("grain")),
    "ip": Part("apt-get install iproute2", _program("ip")),
    "ipykernel": Part(DEV, _module("ipykernel")),
    "mount": Part("apt-get install mount", _program("mount")),
    "the native CPU kernels": Part(
        KERNELS, lambda: library.installed_file("keras-convoy", "libconvoy_cpu.so")
    ),
    "KerasHub": Part("make test-all", _module("keras_hub")),
    "libjpeg-turbo": Part(KERNELS, lambda: _has_libjpeg_turbo()),
    "ONNX Runtime": Part(DEV, lambda: find_spec("onnx") and find_spec("onnxruntime")),
    "openssl": Part("apt-get install openssl", _program("openssl")),
    "pandas": Part(DEV, _module("pandas")),
    "Schemathesis": Part(CLIENTS, (ROOT / ".venv-clients/bin/schemathesis").exists),
    "ssh and sshd": Part("apt-get install openssh-client openssh-server", _program("ssh")),
    "TensorFlow": Part(INTEROP, _module("tensorflow")),
    "the clients of TensorFlow Serving and Triton": Part(
        CLIENTS, (ROOT / ".venv-clients/bin/python").exists
    ),
    "hadolint": Part(DEV, _program("hadolint")),
    "kubeflow-trainer-api": Part(DEV, _module("kubeflow_trainer_api")),
    "shellcheck": Part(DEV, _program("shellcheck")),
    "libtpu": Part(TARGETS, _module("libtpu")),
    "JAX's CUDA plugin": Part(TARGETS, _module("jax_cuda12_plugin")),
    "torch": Part(INTEROP, _module("torch")),
}


def needs(name: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs a part."""
    return pytest.mark.skipif(not PARTS[name].is_present(), reason=_reason(name))


def require(name: str) -> None:
    """Skip the running test if a part that it needs is missing."""
    if not PARTS[name].is_present():
        skip(name)


def skip(name: str) -> None:
    """Skip the running test, which has found a part missing."""
    pytest.skip(_reason(name))


def _reason(name: str) -> str:
    return f"{NEEDS}{name}: {PARTS[name].install}"


def missing(reports: list[pytest.TestReport]) -> list[str]:
    """Return a line for each part that skipped tests needed."""
    reasons = [
        report.longrepr[2].removeprefix("Skipped: ")
        for report in reports
        if isinstance(report.longrepr, tuple)
    ]
    counts = Counter(reason for reason in reasons if reason.startswith(NEEDS))
    return [
        f"{reason.removeprefix(NEEDS)}  (skipped {count} test{'s' * (count > 1)})"
        for reason, count in sorted(counts.items())
    ]


def _has_libjpeg_turbo() -> bool:
    from convoy.native_library import installed_file

    return installed_file("keras-convoy", "libconvoy_jpeg.so") is not None
