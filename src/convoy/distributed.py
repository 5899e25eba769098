"""One run in several processes: which of them this is, and how they agree.

`convoy launch` starts the processes and tells each its place by variables; importing Convoy joins
them. From then on `jax.devices()` has the devices of all, and what a model holds is the same in
every process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from convoy.versions import installed_versions
from convoy_command import LEFT, ended_by_interrupt

COORDINATOR = "CONVOY_COORDINATOR"
COUNT = "CONVOY_PROCESSES"
INDEX = "CONVOY_PROCESS"
ADDRESS = "CONVOY_ADDRESS"
HEARTBEAT = "CONVOY_HEARTBEAT"
"""The file to write to, to say that this process is alive."""
SILENCE = "CONVOY_HEARTBEAT_TIMEOUT"
"""Seconds after which a process that says nothing is taken for hung."""
CLUSTER = "cluster"
"""As the coordinator: ask Slurm, Kubernetes or MPI for all of it."""

# A process that starts last, on a loaded machine, may import for a while.
JOIN_SECONDS = 300
# One that has done its work waits for one that goes on alone.
END_SECONDS = 7 * 24 * 3600
SILENCE_SECONDS = 60
BEAT_SECONDS = 0.5


@dataclass(frozen=True)
class Place:
    """Which of several processes this is.

    Attributes:
        coordinator: address and port of the first process, or `"cluster"`.
        count: how many there are.
        index: which one this is.
        address: where this one can be reached by the others; by default as its host is called.
    """

    coordinator: str
    count: int
    index: int
    address: str | None = None


_place = Place("", 1, 0)
_status: int | None = None


def count() -> int:
    """Return how many processes this run has."""
    return _place.count


def index() -> int:
    """Return which one this is."""
    return _place.index


def is_first() -> bool:
    """Return whether this is the process that writes files and shows progress."""
    return _place.index == 0


def address() -> str:
    """Return the name or address of this host, as other processes reach it."""
    return _place.address or socket.gethostname()


def requested() -> Place | None:
    """Return the place that the environment gives this process.

    Raises:
        ValueError: if the variables do not make sense together.
    """
    coordinator = os.environ.get(COORDINATOR)
    if not coordinator:
        return None
    if coordinator == CLUSTER:
        return Place(CLUSTER, 0, 0)
    numbers = {name: os.environ.get(name, "") for name in (COUNT, INDEX)}
    for name, text in numbers.items():
        if not text.isdigit():
            raise ValueError(
                f"{COORDINATOR} is set, but {name}={text!r} is not a number. Start the processes "
                "by `convoy launch`, or set all of its variables."
            )
    total, own = int(numbers[COUNT]), int(numbers[INDEX])
    if own >= total:
        raise ValueError(f"{INDEX}={own} does not exist in {COUNT}={total} processes.")
    return Place(coordinator, total, own, os.environ.get(ADDRESS))


def join() -> None:
    """Join the other processes, if the environment names some. JAX must not have started.

    Raises:
        ConnectionError: if they cannot be reached.
        RuntimeError: if they run other versions.
    """
    global _place
    _begin_heartbeat()
    asked = requested()
    if asked is None or asked.count == 1:
        return
    if asked.coordinator != CLUSTER and asked.index == 0:
        _check_can_listen(asked.coordinator)
    # JAX's would hear SIGTERM instead of Python, and ask all processes when they can end.
    jax.config.update("jax_enable_preemption_service", False)
    atexit.register(_end)
    # Python does not hear of Ctrl-C while JAX waits for the others.
    with ended_by_interrupt():
        try:
            _initialize(asked)
        except RuntimeError as error:
            raise ConnectionError(_why_not_joined(asked, str(error))) from error
        _exchange_at(asked.address)
        _place = Place(asked.coordinator, jax.process_count(), jax.process_index(), asked.address)
        check_same("version", _versions())


def _initialize(asked: Place) -> None:
    if asked.coordinator == CLUSTER:
        jax.distributed.initialize(heartbeat_timeout_seconds=_silence())
    else:
        jax.distributed.initialize(
            asked.coordinator,
            asked.count,
            asked.index,
            cluster_detection_method="deactivate",
            coordinator_bind_address=asked.coordinator,
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=_silence(),
        )


def ends_with(status: int) -> None:
    """Note the exit status with which this process is about to end."""
    global _status
    _status = status % 256  # as the system has it


def _end() -> None:
    """When Python ends, wait for the other processes; if something went wrong, end at once.

    JAX would wait in either case. But those that wait for a result of this one would never come to
    their ends, and nobody would be told why.
    """
    error = getattr(sys, "last_value", None)  # what Python has shown, if it ends by an exception
    status = 1 if error is not None else _status
    if status not in (None, 0, LEFT):  # those that leave do so together
        _end_at_once(status, interrupted=isinstance(error, KeyboardInterrupt))
    # Python does not hear of Ctrl-C while it waits in JAX.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if status is None:
        return  # nobody has noticed it, so it may be one of failure
    from jax._src import distributed

    # JAX's own waiting holds Python's lock, so that no heartbeat is sent, and ends after five
    # minutes. What goes wrong here it finds as well.
    client = distributed.global_state.client
    if client is not None:
        with contextlib.suppress(RuntimeError):
            client.wait_at_barrier("convoy: all have come to their ends", END_SECONDS * 1000)


def _end_at_once(status: int, *, interrupted: bool) -> None:
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # as Python itself does it
    os._exit(status)


def from_first(value: Any) -> Any:
    """Return what the first process passed, which must be fit for JSON."""
    if count() == 1:
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = int(_broadcast(np.int32(len(text))))
    return json.loads(_broadcast(_padded(text, length)).tobytes())


def arrays_from(process: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of one process; all must have passed such shapes and types."""
    if count() == 1 or not arrays:
        return list(arrays)
    # As bytes, since JAX sends by adding zeros, which turns -0.0 into 0.0.
    own = np.concatenate([np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays])
    sent, found, start = _broadcast(own, process), [], 0
    for array in arrays:
        end = start + array.nbytes
        found.append(sent[start:end].copy().view(array.dtype).reshape(array.shape))
        start = end
    return found


def arrays_from_first(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of the first process; all must have passed such shapes and types."""
    return arrays_from(0, arrays)


def who_has(flags: list[bool]) -> list[list[int]]:
    """Return for each flag the processes in which it is set."""
    if count() == 1:
        return [[0] if flag else [] for flag in flags]
    rows = _gather(np.array(flags, bool).reshape(-1))
    return [[process for process, flag in enumerate(column) if flag] for column in rows.T]


def from_all(value: Any) -> list[Any]:
    """Return what each process passed, which must be fit for JSON, in their order."""
    if count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = _gather(np.int32(len(text)))
    rows = _gather(_padded(text, int(lengths.max())))
    return [json.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def any_of(flags: list[bool]) -> list[bool]:
    """Return for each flag whether it is set in any process."""
    if count() == 1:
        return flags
    return [any(process) for process in zip(*_gather(np.array(flags)).tolist(), strict=True)]


def totals(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the sum of each array over all processes."""
    if count() == 1 or not arrays:
        return list(arrays)
    return [rows.sum(axis=0, dtype=rows.dtype) for rows in _gather(list(arrays))]


def gathered(array: np.ndarray) -> np.ndarray:
    """Return what each process passed, by process; all must pass such shapes and types."""
    if count() == 1:
        return array[None]
    # As bytes, since JAX would make 32 bits of 64.
    rows = _gather(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return rows.view(array.dtype).reshape(-1, *array.shape)


def check_same(what: str, described: dict[str, Any]) -> None:
    """Refuse to run if the processes were not told the same.

    Args:
        what: is described.
        described: by name, as JSON can hold it.

    Raises:
        RuntimeError: with the first thing that differs, in every process.
    """
    first, *others = from_all(described)
    for number, other in enumerate(others, start=1):
        for name in first | other:
            if first.get(name) != other.get(name):
                raise RuntimeError(
                    f"Process {number} has another {what} than process 0: {name} is "
                    f"{other.get(name)!r} there, and {first.get(name)!r} here. Run the same "
                    "script with the same flags and versions in all processes."
                )


def wait_for_all(what: str) -> None:
    """Wait until all processes have come to this point."""
    if count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def _silence() -> int:
    """Return after how many seconds processes that do not hear of each other end by themselves.

    Twice as many as the launcher waits: it knows better which one hangs. JAX counts whole ones.
    """
    return max(1, round(2 * float(os.environ.get(SILENCE, SILENCE_SECONDS))))


def _begin_heartbeat() -> None:
    """Tell whoever started this process that it is alive, until it is not."""
    file = os.environ.pop(HEARTBEAT, "")
    if not file:
        return

    def beat() -> None:
        try:
            while True:
                os.write(int(file), b".")
                time.sleep(BEAT_SECONDS)
        except OSError:
            pass  # nobody listens any more

    threading.Thread(target=beat, name="convoy-heartbeat", daemon=True).start()


def _broadcast(array: Any, process: int = 0) -> Any:
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(array, is_source=index() == process)


def _gather(tree: Any) -> Any:
    from jax.experimental import multihost_utils

    return jax.tree.map(np.asarray, multihost_utils.process_allgather(tree))


def _padded(text: np.ndarray, length: int) -> np.ndarray:
    """Give all processes' texts one length; what is too long is not the one that is read."""
    row = np.zeros(length, np.uint8)
    row[: len(text)] = text[:length]
    return row


def _versions() -> dict[str, Any]:
    return {**installed_versions(), "python": platform.python_version()}


def _exchange_at(address: str | None) -> None:
    """Have this process be reached at one address; by default JAX takes its host's name."""
    if address is None:
        return
    from jax._src import distributed, xla_bridge
    from jaxlib import _jax

    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=address
    )
    factory = functools.partial(xla_bridge.make_cpu_client, collectives=collectives)
    xla_bridge.register_backend_factory("cpu", factory, priority=0, fail_quietly=False)


def _check_can_listen(coordinator: str) -> None:
    """Refuse an address that JAX cannot listen on: it may end the process without a word."""
    host, _, port = coordinator.rpartition(":")
    try:
        with socket.create_server((host, int(port))):
            pass
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"{coordinator} cannot be listened on: {error}. Pass another --port, or end the "
            "program that has it."
        ) from error


def _why_not_joined(asked: Place, error: str) -> str:
    return (
        f"Process {asked.index} could not join {asked.count} processes at {asked.coordinator}: "
        f"{error.splitlines()[0]}"
    )
