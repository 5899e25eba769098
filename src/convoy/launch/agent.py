"""Runs one process of a group on its host, and never leaves it behind.

It is sent to the host as text and knows the standard library only. Its first line of input says
what to run. After that, numbers are signals to pass on, and the end of input means that whoever
started it is gone: the process is then ended. What the process prints, that it is alive, and how it
ended go out as lines of a kind and its content.
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

KINDS = OUTPUT, ALIVE, STARTED, ENDED = "o", "h", "s", "x"
CANNOT_RUN = 127
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> None:
    """Run what the first line of input says, to its end or to ours."""
    task = json.loads(sys.stdin.readline())
    # The terminal's; we are told what to pass on. Our process hears it, unless we were started so.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard = interrupt is not signal.SIG_IGN
    say = Sayer()
    beats, beat = os.pipe()
    cores = share_of_cores(**task["share"])
    try:
        process = subprocess.Popen(
            task["command"],
            cwd=task["folder"],
            env=os.environ | task["environment"] | {task["heartbeat"]: str(beat)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[beat],
            start_new_session=True,
            preexec_fn=lambda: prepare(cores, heard),
        )
    except OSError as error:
        say(OUTPUT, f"{error.filename or task['command'][0]} cannot be run: {error.strerror}")
        say(ENDED, str(CANNOT_RUN))
        return
    os.close(beat)
    say(STARTED, str(process.pid))
    assert process.stdout is not None
    printed = threading.Thread(target=pass_output, args=(process.stdout.fileno(), say), daemon=True)
    printed.start()
    threading.Thread(target=pass_beats, args=(beats, say), daemon=True).start()
    threading.Thread(target=obey, args=(process.pid,), daemon=True).start()
    status = process.wait()
    end_group(process.pid)
    printed.join(timeout=5)
    say(ENDED, str(status))


def prepare(cores: list[int], heard: bool) -> None:
    """Bind the process to its cores, and have it hear SIGINT and die with us."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if cores:
        os.sched_setaffinity(0, cores)


def share_of_cores(number: int, of: int, numa: bool) -> list[int]:
    """Return the cores of one of several processes on this host; none if there are too few.

    Args:
        number: which process.
        of: how many there are.
        numa: whether a process stays on one node of memory, in turn.
    """
    cores = sorted(os.sched_getaffinity(0))
    nodes = [sorted(set(node) & set(cores)) for node in memory_nodes()] if numa else []
    nodes = [node for node in nodes if node]
    if len(nodes) > 1:
        cores = nodes[number % len(nodes)]
        of, number = -(-(of - number % len(nodes)) // len(nodes)), number // len(nodes)
    each = len(cores) // of
    return cores[number * each : (number + 1) * each] if of > 1 or len(nodes) > 1 else []


def memory_nodes() -> list[list[int]]:
    """Return the cores of each node of memory."""
    nodes = []
    for path in sorted(glob.glob("/sys/devices/system/node/node[0-9]*/cpulist")):
        with open(path) as file:
            spans = [span.split("-") for span in file.read().strip().split(",") if span]
        nodes.append([core for s in spans for core in range(int(s[0]), int(s[-1]) + 1)])
    return nodes


class Sayer:
    """Writes one line at a time, from any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, kind: str, content: str = "") -> None:
        with self.lock, contextlib.suppress(BrokenPipeError):
            sys.stdout.write(kind + json.dumps(content) + "\n")
            sys.stdout.flush()


def pass_output(source: int, say: Sayer) -> None:
    """Pass lines on when they end; of one that was written over, what is left of it."""
    rest = b""
    while data := os.read(source, 1 << 16):
        *lines, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            say(OUTPUT, visible(line))
    if rest:
        say(OUTPUT, visible(rest))


def visible(line: bytes) -> str:
    return line.rsplit(b"\r", 1)[-1].decode(errors="replace")


def pass_beats(source: int, say: Sayer) -> None:
    while os.read(source, 64):
        say(ALIVE)


def obey(leader: int) -> None:
    """Pass signals on to the process; when there is no one left to listen to, end it."""
    for line in sys.stdin:
        with contextlib.suppress(ProcessLookupError):
            os.kill(leader, int(line))
    end_group(leader)


def end_group(leader: int) -> None:
    """End a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


if __name__ == "__main__":
    main()
