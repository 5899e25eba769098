"""Joining the other processes of a run, and leaving them.

`convoy launch` starts the processes and sets their variables; importing Convoy joins them. From
then on `jax.devices()` lists the devices of all processes.

A process ends in one of two ways:

    normally       waits at a barrier for the others, since they may still need its devices
    with an error  ends at once, so that the launcher can stop those that wait for its results
"""

import atexit
import contextlib
import functools
import logging
import os
import platform
import signal
import socket
import sys
import threading

import jax
from convoy.distributed.collectives import check_same
from convoy.distributed.process import (
    CLUSTER,
    HEARTBEAT,
    LAST_HEARTBEAT,
    SILENCE,
    SILENCE_SECONDS,
    Place,
    requested,
    set_place,
)
from convoy.error_messages import first_line, system_reason
from convoy.versions import installed_versions
from convoy_command import LEFT, JoinError, ended_by_interrupt

# A process that starts last, on a loaded machine, may take this long to import JAX.
JOIN_SECONDS = 300
# A process that is done waits this long for one that continues alone.
END_SECONDS = 7 * 24 * 3600
BEAT_SECONDS = 0.5

_status: int | None = None


def join() -> None:
    """Join the other processes, if the environment names any. JAX must not have started.

    Raises:
        JoinError: if they cannot be reached.
        RuntimeError: if they run other versions.
    """
    _begin_heartbeat()
    place = requested()
    if place is None or place.count == 1:
        return
    if place.coordinator != CLUSTER and place.index == 0:
        _check_can_listen(_bind_address(place))
    # JAX's service would receive SIGTERM instead of Python, and let all processes agree on an end.
    jax.config.update("jax_enable_preemption_service", False)
    atexit.register(_end)
    # While JAX waits for the others, Python does not handle Ctrl-C.
    with ended_by_interrupt():
        try:
            _initialize(place)
        except RuntimeError as error:
            raise JoinError(
                f"Process {place.index} could not join {place.count} processes. Check that all of "
                f"them run, and that they reach {place.coordinator}. JAX reports: "
                f"{first_line(error)}"
            ) from error
        _set_collectives_address(place.address)
        set_place(Place(place.coordinator, jax.process_count(), jax.process_index(), place.address))
        check_same("version", {**installed_versions(), "python": platform.python_version()})


def _initialize(place: Place) -> None:
    if place.coordinator == CLUSTER:
        jax.distributed.initialize(heartbeat_timeout_seconds=_silence())
    else:
        jax.distributed.initialize(
            place.coordinator,
            place.count,
            place.index,
            cluster_detection_method="deactivate",
            coordinator_bind_address=_bind_address(place),
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=_silence(),
        )


def _bind_address(place: Place) -> str:
    """Return the address at which the first process listens.

    `Place.address` has priority over the coordinator's host name, because the name may resolve to
    another address on this host than on other hosts.
    """
    host, _, port = place.coordinator.rpartition(":")
    return f"{place.address or host}:{port}"


def set_exit_status(status: int) -> None:
    """Set the exit status with which this process is about to end."""
    global _status
    _status = status % 256  # as the system truncates it


def _end() -> None:
    """When Python ends, wait for the other processes; after an error, end at once.

    JAX would wait in both cases. After an error, processes that wait for a result of this one would
    then never end, and the error would not be reported.
    """
    error = getattr(sys, "last_value", None)  # the exception that Python has printed, if any
    status = 1 if error is not None else _status
    if status not in (None, 0, LEFT):  # preempted processes leave together
        _end_at_once(status, interrupted=isinstance(error, KeyboardInterrupt))
    # While Python waits in JAX, it does not handle Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if status is None:
        return  # not set by the command line, so the status is unknown here and may be a failure
    from jax._src import distributed

    # JAX's own barrier at exit holds the GIL, so no heartbeat would be sent, and times out after
    # five minutes. It also finds every error that is suppressed here.
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
        os.kill(os.getpid(), signal.SIGINT)  # as Python itself ends after Ctrl-C
    os._exit(status)


def _silence() -> int:
    """Return the number of seconds after which JAX ends processes that lost contact.

    It is twice the launcher's timeout: the launcher can tell which process hangs. JAX takes whole
    seconds.
    """
    return max(1, round(2 * float(os.environ.get(SILENCE, SILENCE_SECONDS))))


def _begin_heartbeat() -> None:
    """Write a byte to the launcher's pipe every half second, until this process ends.

    When Python ends, it stops the thread, but JAX may then take long to free its memory on a busy
    machine. The last byte tells the launcher not to expect more of them.
    """
    file = os.environ.pop(HEARTBEAT, "")
    if not file:
        return

    is_ending = threading.Event()

    def beat() -> None:
        # The write fails if the launcher has closed its end.
        with contextlib.suppress(OSError):
            os.write(int(file), b".")
            while not is_ending.wait(BEAT_SECONDS):
                os.write(int(file), b".")
            os.write(int(file), LAST_HEARTBEAT.encode())

    thread = threading.Thread(target=beat, name="convoy-heartbeat", daemon=True)

    def end() -> None:
        is_ending.set()
        thread.join()

    thread.start()
    atexit.register(end)


def _set_collectives_address(address: str | None) -> None:
    """Set the address of this process for CPU collectives; by default JAX uses the host's name."""
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
    """Check that the coordinator's port is free; JAX may end the process without a message."""
    host, _, port = coordinator.rpartition(":")
    try:
        with socket.create_server((host, int(port))):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise JoinError(
            f"{coordinator} cannot be used: {system_reason(error)}. "
            "Pass another --port, or end the program that uses it."
        ) from None
