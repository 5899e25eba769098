import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import convoy
import pytest
from convoy_command import cli

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_version_is_the_projects(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"convoy {convoy.__version__}\n"
    assert convoy.__version__ == tomllib.loads(PROJECT.read_text())["project"]["version"]


def test_help_lists_every_verb(capsys):
    assert cli.main([]) == 2
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in cli.VERBS)


@pytest.mark.parametrize(
    ("word", "advice"), [("trian", "Did you mean train?"), ("fly", "convoy --help lists all.")]
)
def test_a_word_that_is_no_verb_is_answered_in_a_line(word, advice, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([word])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"convoy: error: {word!r} is not a verb. {advice}\n"


def test_output_to_a_full_disk_is_an_error_in_a_line():
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", "from convoy_command import convoy; convoy()", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    message = "convoy: error: the output cannot be written: No space left on device.\n"
    assert ended.stderr == message


def test_an_interruption_is_a_line(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("convoy.cli.doctor.main", interrupt)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "convoy doctor: interrupted\n"


def test_a_verb_whose_packages_are_missing_names_their_extra(monkeypatch, capsys):
    def load(verb):
        raise ModuleNotFoundError(name="aiohttp")

    monkeypatch.setattr(cli, "load", load)
    assert cli.main(["serve"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "convoy serve: error: aiohttp is not installed." in line
    assert line.endswith("pip install 'keras-convoy[serving]'")


@pytest.mark.parametrize(
    ("words", "unbuffered"), [("--help", ""), ("completion bash", ""), ("completion bash", "1")]
)
def test_a_reader_that_leaves_early_is_no_error(words, unbuffered):
    reads, writes = os.pipe()
    os.close(reads)
    command = [Path(sys.executable).parent / "convoy", *words.split()]
    surroundings = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open(writes, "w") as output:
        done = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, text=True, env=surroundings
        )
    assert (done.returncode, done.stderr) == (141, "")


def parsers(parser):
    """Return a parser and all below it."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [one for below in action.choices.values() for one in parsers(below)]
    return found


def test_every_verb_says_what_it_does_and_what_each_flag_means():
    found = parsers(cli.make_whole_parser())
    assert len(found) > len(cli.VERBS)
    for parser in found:
        assert parser.description or parser.prog.startswith("convoy checkpoint"), parser.prog
        for action in parser._actions:
            named = action.help or not action.option_strings
            assert named, f"{parser.prog} {action.option_strings}"
        assert parser.format_help().startswith("usage: convoy")


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_a_verbs_help_is_its_own(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb, "--help"])
    assert stopped.value.code == 0
    assert f"convoy {verb}" in capsys.readouterr().out


def test_is_installed_as_a_command():
    command = Path(sys.executable).parent / "convoy"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("convoy ")
