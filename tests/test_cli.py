import subprocess
import sys
import tomllib
from pathlib import Path

import convoy
import pytest
from convoy import cli

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def test_version_is_the_projects(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"convoy {convoy.__version__}\n"
    assert convoy.__version__ == tomllib.loads(PROJECT.read_text())["project"]["version"]


def test_help_lists_every_verb(capsys):
    assert cli.main([]) == 2
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in (*cli.VERBS, *cli.APPLICATIONS))


def test_doctor_tells_devices_and_kernels(capsys):
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "4 x cpu" in shown
    assert "cpu kernels" in shown


def test_train_reads_its_flags_itself(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "--modle", "x"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "convoy train: error: --modle is not a flag. Did you mean --model-name?\n"
    )


def test_an_unknown_verb_is_named(capsys):
    with pytest.raises(SystemExit):
        cli.main(["trian"])
    assert "invalid choice: 'trian'" in capsys.readouterr().err


def test_is_installed_as_a_command():
    command = Path(sys.executable).parent / "convoy"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("convoy ")
