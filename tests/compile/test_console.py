import os
import pty
import re

import pytest
from convoy.compile.console import Console
from convoy.compile.toolchain import compiler_output_hidden


@pytest.fixture
def terminal():
    """Make standard error a terminal; return a function that reads its first complete line."""
    reader, writer = pty.openpty()
    before = os.dup(2)
    os.dup2(writer, 2)

    def read():
        shown = ""
        while "\n" not in shown:
            shown += os.read(reader, 1000).decode()
        return shown

    yield read
    os.dup2(before, 2)
    for descriptor in (reader, writer, before):
        os.close(descriptor)


def test_a_file_has_a_line_at_the_beginning_and_one_with_the_time(capfd):
    with Console() as console, console.timed("train (fit)"):
        pass
    first, second = capfd.readouterr().err.splitlines()
    assert first == "train (fit) ..."
    assert re.fullmatch(r"train \(fit\): [\d.]+ [mµn]s", second)


def test_a_terminal_has_one_line_that_shows_the_elapsed_time(terminal):
    with Console() as console, console.timed("train (fit)"):
        pass
    shown = terminal()
    assert shown.startswith("\rtrain (fit) ... 0:00\rtrain (fit): ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("stream", ["file", "terminal"])
def test_the_time_is_shown_and_the_thread_ends_after_an_error_too(request, capfd, stream):
    read = request.getfixturevalue("terminal") if stream == "terminal" else None
    with pytest.raises(KeyError), Console() as console, console.timed("train"):
        raise KeyError
    shown = capfd.readouterr().err if read is None else read()
    assert "train: " in shown


def test_progress_is_shown_while_the_output_of_compilers_is_hidden(capfd):
    with Console() as console, compiler_output_hidden():
        console.line("compiling")
        os.write(2, b"noise\n")
    assert capfd.readouterr().err == "compiling\n"
