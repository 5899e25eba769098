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


def test_a_signal_is_announced_while_the_main_thread_is_busy(listening, capsys):
    """As in a device call: the handler of a signal runs only when the main thread returns."""
    shown = []

    def is_shown():
        shown.append(capsys.readouterr().err)
        return "A second signal exits at once." in "".join(shown)

    os.kill(os.getpid(), signal.SIGTERM)
    until(is_shown)
    assert listening.signal is signal.SIGTERM
    assert "SIGTERM: waiting for the running device call and its checkpoint." in "".join(shown)


@pytest.mark.parametrize("in_line", [False, True])
def test_the_last_line_names_the_signal_and_the_checkpoint(listening, capsys, tmp_path, in_line):
    listening.signal = signal.SIGINT
    with pytest.raises(preemption.Preempted) as ended:
        listening.exit(tmp_path, in_line=in_line)
    line = f"Stopped by SIGINT, exit status 75; checkpoint to resume from: {tmp_path}"
    assert ended.value.code == 75
    assert str(ended.value) == line
    assert capsys.readouterr().out == ("\n" if in_line else "") + line + "\n"


def test_a_signal_to_another_process_ends_this_one_too(listening, tmp_path):
    with pytest.raises(preemption.Preempted, match="Stopped by a signal to another process"):
        listening.exit(tmp_path, in_line=False)


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
