"""Programs that `convoy launch` runs: as Python itself would run them."""

import subprocess
import sys

import pytest


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


def run(folder, *words):
    command = [sys.executable, "-m", "convoy_command.program", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("words", [("script.py",), ("-m", "script")])
def test_a_program_sees_its_own_arguments_and_modules_beside_it(tmp_path, words):
    (tmp_path / "beside.py").write_text("VALUE = 3")
    (tmp_path / "script.py").write_text(
        "import sys, beside\nprint(__name__, sys.argv[1:], beside.VALUE)"
    )
    done = run(tmp_path, *words, "--flag", "value")
    assert (done.returncode, done.stdout) == (0, "__main__ ['--flag', 'value'] 3\n"), done.stderr


def test_its_exit_status_is_that_of_the_program(tmp_path):
    (tmp_path / "script.py").write_text("raise SystemExit(7)")
    assert run(tmp_path, "script.py").returncode == 7


def test_a_traceback_begins_with_the_program(tmp_path):
    (tmp_path / "script.py").write_text("def fail():\n    1 / 0\n\nfail()")
    done = run(tmp_path, "script.py")
    assert done.returncode == 1
    first, second, *_ = done.stderr.splitlines()
    assert first == "Traceback (most recent call last):"
    assert second.endswith('script.py", line 4, in <module>')
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_jax_is_not_imported_unless_the_program_does(tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys; print(sorted({'convoy', 'jax', 'keras'} & set(sys.modules)))"
    )
    assert run(tmp_path, "script.py").stdout == "[]\n"
