import signal
import subprocess
import sys
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from convoy.context import blocked, bound, changed

LEVEL: ContextVar[int] = ContextVar("level", default=0)


def test_a_block_sees_its_own_value_and_the_code_after_it_the_earlier_one():
    with bound(LEVEL, 1) as outer:
        assert (outer, LEVEL.get()) == (1, 1)
        with bound(LEVEL, 2):
            assert LEVEL.get() == 2
        assert LEVEL.get() == 1
    assert LEVEL.get() == 0


def test_a_failure_in_the_block_restores_the_value_too():
    with pytest.raises(KeyError), bound(LEVEL, 1):
        raise KeyError
    assert LEVEL.get() == 0


def test_attributes_have_other_values_in_the_block_only():
    first, second = SimpleNamespace(size=1), SimpleNamespace(size=2, name="second")
    with changed(iter([(first, "size", 10), (second, "name", "other")])):
        assert (first.size, second.size, second.name) == (10, 2, "other")
    assert (first.size, second.name) == (1, "second")
    with pytest.raises(KeyError), changed([(first, "size", 10)]):
        raise KeyError
    assert first.size == 1


def test_a_process_that_starts_in_the_block_does_not_receive_blocked_signals():
    command = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"

    def is_blocked():
        words = [sys.executable, "-S", "-c", command]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout == "True\n"

    assert not is_blocked()
    with blocked(signal.SIGINT):
        assert is_blocked()
    assert not is_blocked()


def test_a_blocked_signal_takes_effect_after_the_block():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("received"))
    try:
        with blocked(signal.SIGUSR1):
            signal.raise_signal(signal.SIGUSR1)
            seen.append("end of the block")
        assert seen == ["end of the block", "received"]
    finally:
        signal.signal(signal.SIGUSR1, before)
