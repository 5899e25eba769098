import os
import signal
import threading
import time

import pytest
from convoy.checkpoint import preemption


@pytest.fixture
def listening():
    made = preemption.Preemption()
    made.begin()
    yield made
    made.end()


def until(condition):
    while not condition():
        time.sleep(0.001)


def test_a_signal_is_noted(listening):
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: listening.signal)
    assert listening.signal == signal.SIGTERM


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
