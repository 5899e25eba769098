import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from convoy_command import ended_by_interrupt

pytestmark = pytest.mark.integration

# Ctrl-C comes while the package is looked for.
INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "convoy":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["convoy", "doctor"]
import convoy_command
convoy_command.{}()
"""


@pytest.mark.parametrize("command", ["convoy", "poprun"])
def test_an_interruption_while_importing_shows_no_traceback(command):
    code = INTERRUPTED_IMPORT.format(command)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["trian"]])
def test_what_needs_no_verb_is_answered_without_importing_jax(words):
    code = (
        "import atexit, sys, convoy_command\n"
        "atexit.register(lambda: print(sorted({'convoy', 'jax', 'keras'} & set(sys.modules))))\n"
        f"sys.argv[1:] = {words}\n"
        "sys.exit(convoy_command.convoy())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def restored():
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_the_earlier_handler_comes_back(handler, restored):
    signal.signal(signal.SIGINT, handler)
    with ended_by_interrupt():
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert ignored == (handler is signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_leave_the_handler_alone():
    def import_something():
        with ended_by_interrupt():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor() as threads:
        seen = threads.submit(import_something).result()
    assert seen is signal.getsignal(signal.SIGINT)
