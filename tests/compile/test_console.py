import os
import pty
import re
import threading

import pytest
from convoy.compile.console import Console
from convoy.compile.toolchain import compiler_output_hidden


class Terminal:
    """Standard error as a terminal, in a `with` block of a test.

    In a fixture it would not last: pytest redirects standard error again for the test itself.
    """

    def __enter__(self):
        self._reader, writer = pty.openpty()
        os.set_blocking(self._reader, False)
        self._before = os.dup(2)
        os.dup2(writer, 2)
        os.close(writer)
        return self

    def shown(self):
        return os.read(self._reader, 1000).decode()

    def __exit__(self, *_):
        os.dup2(self._before, 2)
        os.close(self._before)
        os.close(self._reader)


def test_a_file_has_a_line_at_the_beginning_and_one_with_the_time(capfd):
    with Console() as console, console.timed("train (fit)"):
        pass
    first, second = capfd.readouterr().err.splitlines()
    assert first == "train (fit) ..."
    assert re.fullmatch(r"train \(fit\): [\d.]+ [mµn]s", second)


def test_a_terminal_has_one_line_that_shows_the_elapsed_time():
    with Terminal() as terminal:
        with Console() as console, console.timed("train (fit)"):
            pass
        shown = terminal.shown()
    assert shown.startswith("\rtrain (fit) ... 0:00\rtrain (fit): ")
    assert shown.count("\n") == 1


def fail_in_a_timed_block():
    with pytest.raises(KeyError), Console() as console, console.timed("train"):
        raise KeyError


def test_the_time_is_shown_after_an_error_too(capfd):
    fail_in_a_timed_block()
    assert "train: " in capfd.readouterr().err


def test_the_thread_of_a_terminal_ends_after_an_error_too():
    before = threading.active_count()
    with Terminal() as terminal:
        fail_in_a_timed_block()
        assert "train: " in terminal.shown()
    assert threading.active_count() == before


def test_progress_is_shown_while_the_output_of_compilers_is_hidden(capfd):
    with Console() as console, compiler_output_hidden():
        console.line("compiling")
        os.write(2, b"noise\n")
    assert capfd.readouterr().err == "compiling\n"
