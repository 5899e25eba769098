import os
import signal
import threading
import time

import pytest
from convoy.checkpoint import callback, preemption


@pytest.fixture
def noted():
    """The signals that were passed on."""
    return []


@pytest.fixture
def listening(noted):
    made = preemption.Preemption(noted.append)
    made.begin()
    yield made
    made.end()


def until(condition):
    while not condition():
        time.sleep(0.001)


def test_a_signal_is_noted(listening, noted):
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: noted)
    assert noted == [listening.signal] == [signal.SIGTERM]


def test_a_signal_is_announced_while_the_main_thread_is_busy(listening, noted, capsys):
    """As in a device call: the handler of a signal runs only when the main thread returns."""
    os.kill(os.getpid(), signal.SIGINT)
    until(lambda: noted)
    callback._announce(noted[0])
    assert "SIGINT: waiting for the running device call" in capsys.readouterr().err


def test_a_signal_waits_while_a_process_is_made(listening):
    preemption._before_fork()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
    time.sleep(0.05)
    assert listening.signal is None
    preemption._after_fork_in_parent()
    until(lambda: listening.signal)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_a_process_that_is_told_to_leave_at_once_does_not_tell_its_parent(listening):
    for _ in range(20):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
    time.sleep(0.05)
    assert listening.signal is None
