"""Signals, failures and exit statuses of launched programs."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from convoy.launch import process_group
from convoy.launch.process_group import ProcessGroup

from .running import SCRIPT, SOURCE, is_alive, launch, shell_tasks, wait_until

pytestmark = pytest.mark.integration

NOT_IN_FIT = """
import os, signal
print("ready", os.getpid(), flush=True)
signal.pause()
"""
JOINED = f"""
import convoy
strategy = convoy.Strategy()
{NOT_IN_FIT}
"""
IGNORES = f"""
import signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: print("heard", flush=True))
{NOT_IN_FIT}
while True:
    signal.pause()
"""
TRAINS = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import convoy, keras, worker

class Ready(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            print("ready", flush=True)

callbacks = [convoy.Checkpoints(sys.argv[1]), Ready()]
worker.make(convoy.Strategy()).fit(
    *worker.data(), batch_size=4, epochs=1000000, verbose=0, callbacks=callbacks
)
"""


@pytest.fixture(autouse=True)
def interrupts_are_heard():
    """Handle SIGINT as in a terminal; a background job of a shell would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def script(folder, text):
    file = folder / "program.py"
    file.write_text(text)
    return file


@contextlib.contextmanager
def launched(*words, **settings):
    """Start `convoy launch` in its own process, which ends with the block."""
    variables = {n: v for n, v in os.environ.items() if not n.startswith("XLA_")}
    with subprocess.Popen(
        [sys.executable, "-m", "convoy", "launch", *map(str, words)],
        env=variables | {"PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **settings,
    ) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def read_until(launcher, word, times):
    """Return the output up to the n-th line that contains a word."""
    lines = []
    for line in launcher.stdout:
        lines.append(line)
        if sum(word in earlier for earlier in lines) == times:
            return lines
    raise AssertionError("".join(lines))


def pids(lines):
    return [int(line.split()[-1]) for line in lines if "ready" in line]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGINT, NOT_IN_FIT),
        (signal.SIGTERM, NOT_IN_FIT),
        (signal.SIGINT, JOINED),
        pytest.param(signal.SIGTERM, JOINED, marks=pytest.mark.slow),
    ],
    ids=["SIGINT", "SIGTERM", "SIGINT-joined", "SIGTERM-joined"],
)
def test_processes_that_do_not_train_end_by_a_signal_as_python_does(tmp_path, number, text):
    with launched("--num-instances", 2, script(tmp_path, text)) as launcher:
        ready = read_until(launcher, "ready", 2)
        launcher.send_signal(number)
        said = launcher.stdout.read()
    assert launcher.returncode == 128 + number, said
    assert said.count(f"convoy launch: {number.name}: stopping 2 processes") == 1
    assert "again to kill them at once" in said
    assert said.count("\n[0] KeyboardInterrupt") == (number == signal.SIGINT)
    assert not any(map(is_alive, pids(ready)))


def test_a_second_signal_kills_processes_that_ignore_the_first(tmp_path):
    with launched("--num-instances", 2, script(tmp_path, IGNORES)) as launcher:
        ready = read_until(launcher, "ready", 2)
        launcher.send_signal(signal.SIGINT)
        read_until(launcher, "heard", 2)
        launcher.send_signal(signal.SIGTERM)
        said = launcher.stdout.read()
    assert launcher.returncode == 128 + signal.SIGTERM
    assert said == "convoy launch: SIGTERM again: killing 2 processes.\n"
    assert not any(map(is_alive, pids(ready)))


@pytest.mark.parametrize("ignored", [False, True])
def test_sigint_is_ignored_where_the_launcher_was_started_to_ignore_it(ignored):
    program = "import signal; print(signal.getsignal(2) == signal.SIG_IGN)"
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which is inherited
    with launched(sys.executable, "-c", program) as launcher:
        assert launcher.stdout.read() == f"[0] {ignored}\n"


def test_processes_have_unlimited_time_after_a_signal(tmp_path, monkeypatch):
    """One process ends at once; the other is not killed while it writes."""
    monkeypatch.setattr(process_group, "GRACE_SECONDS", 0)
    writes = (
        f"trap 'until [ -e {tmp_path}/go ]; do :; done; echo written; exit 75' TERM\n"
        "echo ready; while :; do :; done"
    )
    printed = []

    def show(index, line):
        printed.append(line)
        if printed.count("ready") == 2 and line == "ready":
            group.send_signal(signal.SIGTERM)

    tasks = shell_tasks(writes, "echo ready; exec sleep 600")
    group = ProcessGroup(tasks, show, heartbeat_timeout=60)

    def let_it_write():
        wait_until(lambda: group.failed is not None)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=let_it_write)
    thread.start()
    assert group.run() == 128 + signal.SIGTERM
    thread.join()
    assert printed == ["ready", "ready", "written"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_training_processes_write_a_checkpoint_and_exit(tmp_path, number):
    folder = tmp_path / "checkpoints"
    with launched("--num-instances", 2, script(tmp_path, TRAINS), folder) as launcher:
        read_until(launcher, "ready", 2)
        launcher.send_signal(number)
        said = launcher.stdout.read()
    assert launcher.returncode == 75, said
    assert f"convoy launch: {number.name}: stopping 2 processes" in said
    assert [path for path in folder.iterdir() if path.is_dir()]


FAILS = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import pathlib
import convoy, keras, worker
from convoy import distributed

mark = pathlib.Path(sys.argv[1]) / "failed"

class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and distributed.index() == 1 and not mark.exists():
            mark.touch()
            raise OSError("the disk is full")

worker.make(convoy.Strategy()).fit(
    *worker.data(), batch_size=4, epochs=4, verbose=0, callbacks=[Fails()]
)
print("trained")
"""


def test_an_exception_in_one_process_ends_all_and_is_reported(tmp_path):
    ended = launch("--num-instances", 2, script(tmp_path, FAILS), tmp_path)
    assert ended.returncode == 1
    assert "[1] OSError: the disk is full" in ended.stdout
    assert "process 1 on localhost" in ended.stderr
    assert "exited with status 1" in ended.stderr
    assert "trained" not in ended.stdout


@pytest.mark.slow
def test_an_exception_in_one_process_restarts_all(tmp_path):
    words = ["--num-instances", 2, "--max-restarts", 1]
    ended = launch(*words, script(tmp_path, FAILS), tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("trained") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("raise ValueError('broken')", 1),
        ("raise SystemExit(7)", 7),
        ("sys.exit('broken')", 1),
        ("raise KeyboardInterrupt", 128 + signal.SIGINT),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_process_that_fails_does_not_wait_for_others(tmp_path, how, status, first):
    text = (
        "import signal, sys\n"
        "import convoy\n"
        "from convoy import distributed\n"
        "print('half a line', end='')\n"
        f"if distributed.index() == {0 if first else 1}:\n"
        f"    {how}\n"
        "signal.pause()\n"
    )
    ended = launch("--num-instances", 2, script(tmp_path, text))
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert f"process {0 if first else 1} on localhost" in ended.stderr
    assert f"[{0 if first else 1}] half a line" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_a_finished_process_waits_for_the_others(tmp_path, first):
    text = (
        "import atexit, pathlib, sys, time\n"
        "import convoy\n"
        "from convoy import distributed\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        f"if distributed.index() == {0 if first else 1}:\n"
        "    atexit.register((folder / 'ends').touch)\n"
        "    sys.exit(0)\n"
        "while not (folder / 'ends').exists():\n"
        "    time.sleep(0.1)\n"
        "time.sleep(10)  # longer than a process may be silent\n"
        "print('done')\n"
    )
    ended = launch("--num-instances", 2, "--heartbeat-timeout", 8, script(tmp_path, text))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"[{1 if first else 0}] done" in ended.stdout


def test_a_module_and_a_script_run_as_python_runs_them(tmp_path):
    text = (
        "import sys\n"
        "class Kept: pass\n"
        "if __name__ == '__main__':\n"
        "    assert sys.modules['__main__'].Kept is Kept\n"
        "    print(sys.argv[1:], sys.path[0], 'jax' in sys.modules)\n"
        "    raise ValueError('broken')\n"
    )
    file = script(tmp_path, text)
    ended = launch(file, "--flag", "x")
    shown = [line.removeprefix("[0] ") for line in ended.stdout.splitlines()]
    plain = subprocess.run(
        [sys.executable, file, "--flag", "x"], capture_output=True, text=True, check=False
    )
    assert shown[0] == f"['--flag', 'x'] {tmp_path} False" == plain.stdout.strip()
    assert shown[1:] == plain.stderr.splitlines()
    assert ended.returncode == 1
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "__main__.py").write_text("import sys\nsys.exit(3)\n")
    with launched(sys.executable, "-m", "here", cwd=tmp_path) as launcher:
        launcher.stdout.read()
    assert launcher.returncode == 3


def test_a_killed_agent_takes_its_process_along_and_is_reported(tmp_path):
    """The agent is the process between the launcher and the program."""
    with launched(script(tmp_path, NOT_IN_FIT)) as launcher:
        (pid,) = pids(read_until(launcher, "ready", 1))
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        said = launcher.stdout.read()
    assert launcher.returncode == 128 + signal.SIGKILL, said
    assert said.count("\n") == 1
    assert "was terminated by SIGKILL" in said
    wait_until(lambda: not is_alive(pid))


def test_too_few_descriptors_are_one_line_and_nothing_keeps_running(tmp_path):
    words = ["--num-instances", 16, script(tmp_path, NOT_IN_FIT)]
    with launched(*words) as launcher:
        # While it imports, before it starts the first process.
        resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, (24, 24))
        lines = launcher.stdout.read().splitlines()
    assert launcher.returncode == 1, lines
    own = [line for line in lines if not line.startswith("[")]
    assert len(own) == 1, own
    assert "of 16 cannot be started: Too many open files. Start fewer" in own[0]
    assert not any(map(is_alive, pids(lines)))


def test_a_run_goes_on_if_its_output_cannot_be_written(tmp_path):
    file = script(tmp_path, f"print('x' * 100)\nopen({str(tmp_path / 'done')!r}, 'w')\n")
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "convoy", "launch", str(file)],
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (tmp_path / "done").exists()
    assert ended.returncode == 0
    assert ended.stderr == (
        "convoy launch: output cannot be written: No space left on device. The processes "
        "continue without it.\n"
    )
