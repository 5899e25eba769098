"""Protocol between the coordinator and a runner: one line of request, one line of response.

    prepare <workload> <precision>    ready {"parameters": ..., "versions": {...}}
    run <steps>                       seconds <seconds>

A runner that fails responds `failed <reason>`. It ends when its input ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Protocol

from benchmarks.peers.suites import WORKLOADS
from benchmarks.peers.workloads import Workload

PACKAGES = (
    "keras-convoy",
    "keras",
    "jax",
    "jaxlib",
    "tensorflow-cpu",
    "torch",
    "onnxruntime",
    "openvino",
    "numpy",
)


class RunnerError(Exception):
    """A failure of a runner, or an invalid response."""


@dataclass(frozen=True)
class Ready:
    """Response of a prepared runner: parameters of its network, versions, and a note."""

    parameters: int
    versions: dict[str, str] = field(default_factory=dict)
    note: str = ""


class Runner(Protocol):
    """A framework with a workload's network in it."""

    def prepare(self, workload: Workload, precision: str) -> Ready:
        """Build the network in a precision and its data, compile, and warm up."""

    def run(self, steps: int) -> None:
        """Run some steps and wait for their end."""


def parse_ready(line: str) -> Ready:
    return Ready(**json.loads(_response(line, "ready")))


def parse_seconds(line: str) -> float:
    return float(_response(line, "seconds"))


def _response(line: str, expected: str) -> str:
    word, _, rest = line.strip().partition(" ")
    if word == expected:
        return rest
    raise RunnerError(rest if word == "failed" else f"ended, or responded {line.strip()!r}")


def reply(runner: Runner, line: str) -> str:
    """Handle a request, and return the response."""
    word, _, argument = line.strip().partition(" ")
    try:
        if word == "prepare":
            name, _, precision = argument.partition(" ")
            return "ready " + json.dumps(vars(runner.prepare(WORKLOADS[name], precision)))
        if word == "run":
            steps = int(argument)
            start = time.perf_counter()
            runner.run(steps)
            return f"seconds {time.perf_counter() - start:.6f}"
    except Exception as error:  # any error of a framework; the other peers continue
        traceback.print_exc()
        first = (str(error).strip() or "no message").splitlines()[0]
        return f"failed {type(error).__name__}: {first}"
    return f"failed {word!r} is not a request of the protocol"


def check_parameters(workload: Workload, found: int) -> int:
    if workload.parameters not in (None, found):
        raise ValueError(
            f"{workload.name} has {workload.parameters} trainable parameters, but this network "
            f"has {found}"
        )
    return found


def versions() -> dict[str, str]:
    """Return the versions of the packages in this environment that affect speed."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def serve(make_runner: Callable[[str], Runner], variant: str) -> None:
    """Respond to requests until the input ends.

    Standard output is reserved for responses; output of a framework goes to standard error.
    """
    end_with_parent()
    end_first_without_memory()
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    runner = make_runner(variant)
    for line in sys.stdin:
        print(reply(runner, line), file=responses, flush=True)


def end_with_parent() -> None:
    """Make the kernel kill this process when the coordinator ends.

    A process that is stopped between its turns would not notice the end of its input.
    """
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def end_first_without_memory() -> None:
    """Make the kernel choose this process if it must end one because no memory is left."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
