"""The agent: runs one process of a group on its host and ends it when the launcher is gone.

The launcher sends this file to the host as text, so it imports the standard library only.

    launcher                     agent                          process
       | -- task (JSON, one line) -> |  -- starts, binds to cores -> |
       | -- signal numbers --------> |  -- sends ------------------> |
       | <-- kind + JSON string ---- |  <-- output, heartbeats ----- |
       |                             |
       end of input: the launcher is gone, and the agent kills the process
"""

import contextlib
import ctypes
import glob
import json
import os
import signal
import subprocess
import sys
import threading

KINDS = OUTPUT, HEARTBEAT, LAST_HEARTBEAT, STARTED, EXITED = "o", "h", "l", "s", "x"
CANNOT_RUN = 127
PR_SET_PDEATHSIG = 1
# A line that has not ended is passed on in pieces of this size.
MAX_LINE_BYTES = 1 << 16


def main() -> None:
    """Run the task of the first input line until the process or the launcher ends."""
    task = json.loads(sys.stdin.readline())
    # The launcher decides which signals the process gets. The process itself handles SIGINT as
    # usual, unless the launcher was started with SIGINT ignored.
    restore_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN) is not signal.SIG_IGN
    send = Sender()
    heartbeats, heartbeat = os.pipe()
    cores = assigned_cores(**task["cores"])
    try:
        process = subprocess.Popen(
            task["command"],
            cwd=task["folder"],
            env=os.environ | task["environment"] | {task["heartbeat"]: str(heartbeat)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[heartbeat],
            start_new_session=True,
            preexec_fn=lambda: prepare(cores, restore_interrupt),
        )
    except OSError as error:
        send(OUTPUT, f"{error.filename or task['command'][0]} cannot be run: {error.strerror}")
        send(EXITED, str(CANNOT_RUN))
        return
    os.close(heartbeat)
    send(STARTED, str(process.pid))
    assert process.stdout is not None
    output = threading.Thread(
        target=forward_output, args=(process.stdout.fileno(), send), daemon=True
    )
    output.start()
    last = task["last_heartbeat"].encode()
    threading.Thread(target=forward_heartbeats, args=(heartbeats, last, send), daemon=True).start()
    threading.Thread(target=forward_signals, args=(process.pid,), daemon=True).start()
    exit_status = process.wait()
    kill_group(process.pid)
    output.join(timeout=5)
    send(EXITED, str(exit_status))


def prepare(cores: list[int], restore_interrupt: bool) -> None:
    """Set up the new process: killed with the agent, default SIGINT handler, bound to cores."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if restore_interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if cores:
        os.sched_setaffinity(0, cores)


def assigned_cores(local_rank: int, local_size: int, numa_aware: bool) -> list[int]:
    """Return the cores of one of several processes on this host; none if there are too few.

    Args:
        local_rank: index of the process among those of this host.
        local_size: number of processes on this host.
        numa_aware: whether each process stays on one NUMA node; processes alternate over nodes.
    """
    cores = sorted(os.sched_getaffinity(0))
    nodes = [sorted(set(node) & set(cores)) for node in numa_nodes()] if numa_aware else []
    nodes = [node for node in nodes if node]
    if len(nodes) > 1:
        local_rank, node = divmod(local_rank, len(nodes))
        cores, local_size = nodes[node], -(-(local_size - node) // len(nodes))
    elif local_size == 1:
        return []
    count = len(cores) // local_size
    return cores[local_rank * count : (local_rank + 1) * count]


def numa_nodes() -> list[list[int]]:
    """Return the cores of each NUMA node."""
    nodes = []
    for path in sorted(glob.glob("/sys/devices/system/node/node[0-9]*/cpulist")):
        with open(path) as file:
            spans = [span.split("-") for span in file.read().strip().split(",") if span]
        nodes.append([core for s in spans for core in range(int(s[0]), int(s[-1]) + 1)])
    return nodes


class Sender:
    """Sends one line at a time to the launcher, from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, kind: str, content: str = "") -> None:
        with self.lock, contextlib.suppress(BrokenPipeError):
            sys.stdout.write(kind + json.dumps(content) + "\n")
            sys.stdout.flush()


def forward_output(source: int, send: Sender) -> None:
    """Forward complete lines; of a line with carriage returns, only the part after the last.

    A line that has not ended is kept in memory: of one with carriage returns, only the part after
    the last, and at most `MAX_LINE_BYTES`. What exceeds that is forwarded as a line of its own.
    """
    incomplete = b""
    while data := os.read(source, 1 << 16):
        *lines, incomplete = (incomplete + data).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            send(OUTPUT, visible(line))
        # A carriage return at the end may belong to the end of a line.
        incomplete = incomplete[incomplete.rfind(b"\r", 0, len(incomplete) - 1) + 1 :]
        while len(incomplete) > MAX_LINE_BYTES:
            end = end_of_piece(incomplete)
            send(OUTPUT, visible(incomplete[:end]))
            incomplete = incomplete[end:]
    if incomplete:
        send(OUTPUT, visible(incomplete))


def end_of_piece(line: bytes) -> int:
    """Return the length of the first piece of a long line, which ends between two characters."""
    end = MAX_LINE_BYTES
    # In UTF-8, the bytes of a character after its first begin with the bits 10; there are up to 3.
    while end > MAX_LINE_BYTES - 3 and line[end] & 0xC0 == 0x80:
        end -= 1
    return end


def visible(line: bytes) -> str:
    return line.rsplit(b"\r", 1)[-1].decode(errors="replace")


def forward_heartbeats(source: int, last: bytes, send: Sender) -> None:
    while received := os.read(source, 64):
        send(LAST_HEARTBEAT if received.endswith(last) else HEARTBEAT)


def forward_signals(pid: int) -> None:
    """Send the signals that the launcher names to the process; kill it when input ends."""
    for line in sys.stdin:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, int(line))
    kill_group(pid)


def kill_group(pid: int) -> None:
    """Kill a process and everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
