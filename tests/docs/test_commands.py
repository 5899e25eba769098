"""Every command on every page: its program, script and flags are there, and are understood."""

import argparse
import re
from importlib.util import find_spec

import pytest
from convoy.cli.train import make_parser, parse
from convoy.train.graphcore_flags import GraphcoreOptions
from convoy.train.run_settings import check_options, make_run_settings
from convoy_command import cli

from cosmoflow import command_line as cosmoflow

from .pages import PROGRAMS, ROOT, commands

COMMANDS = commands()
PARSERS = next(
    action.choices
    for action in cli.make_whole_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
TRAINING = ("export", "compile")
# Scripts that a guide takes for the reader's own.
READERS_OWN = ("train.py", "plain_keras_script.py")


def option_strings(parser):
    found = {word for action in parser._actions for word in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= set().union(*map(option_strings, action.choices.values()))
    return found


def flags(words):
    """Return the flags of a command; a value may follow an equals sign."""
    return [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]


def check_flags(words, known):
    for flag in flags(words):
        assert any(name.startswith(flag) for name in known), f"{flag} is not a flag"


def check_convoy(words, folder, whole):
    verb, rest = words[0], [word for word in words[1:] if word != "..."]
    assert verb in cli.VERBS or verb == "--version", f"{verb} is not a verb"
    if verb == "--version" or rest == ["--help"]:
        return
    parser = PARSERS[verb]
    if verb == "launch":
        options = parser.parse_args(rest)
        if options.program:
            check(options.program, folder, whole)
    elif verb == "compile" and any(word.endswith(".py") for word in rest):
        place = next(i for i, word in enumerate(rest) if word.endswith(".py"))
        parser.parse_args(rest[:place])
        check(rest[place:], folder, whole)
    elif not whole:
        trains = verb in TRAINING  # which take the flags of the training, too
        known = option_strings(parser) | (option_strings(PARSERS["train"]) if trains else set())
        check_flags(rest, known)
    elif verb == "train":
        options = parse(rest)
        # The reader's own images are not here; `test_following` runs such commands.
        check_options(options) if options.dataset == "folder" else make_run_settings(options)
    elif verb in TRAINING:
        _, others = parser.parse_known_args(rest)
        check_flags(others, option_strings(PARSERS["train"]))
    else:
        parser.parse_args(rest)


def check_python(words, folder, whole):
    if words[0] == "-c":
        compile("".join(words[1:]), "-c", "exec")
        return
    if words[0] == "-m":
        module = words[1]
        file = ROOT / f"{module.replace('.', '/')}.py"
        assert file.is_file() or find_spec(module), f"{module} is not a module"
        return
    script = folder / words[0]
    script = script if script.is_file() else ROOT / words[0]
    if folder == ROOT / "docs" and words[0] in READERS_OWN:
        return
    assert script.is_file(), f"{words[0]} is not a file"
    if script.name == "train.py" and script.parent.name == "cosmoflow" and whole:
        cosmoflow.make_parser("train.py", script.parent).parse_args(words[1:])
        for word in words[1:]:
            assert not word.endswith(".yaml") or (script.parent / word).is_file(), word
    elif script.name == "train.py" and script.parent.name == "cnns":
        if whole:
            make_run_settings(parse(words[1:], "train.py", schema=GraphcoreOptions))
        else:
            check_flags(words, option_strings(make_parser("train.py", GraphcoreOptions)))
    else:
        source = "\n".join(file.read_text() for file in script.parent.rglob("*.py"))
        for flag in flags(words):
            assert f'"{flag}"' in source, f"{script.name} has no {flag}"


def check_pip(words, folder):
    assert words[0] == "install"
    for place, word in enumerate(words):
        if word in ("-r", "--requirement"):
            assert (folder / words[place + 1]).is_file()
        if extra := re.search(r"\[(.*)\]", word):
            project = (ROOT / "pyproject.toml").read_text()
            assert all(f"\n{name} = [" in project for name in extra[1].split(","))


def check(words, folder, whole):
    program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if program.endswith(".py"):
        program, rest = "python", words
    if program == "convoy":
        check_convoy(rest, folder, whole)
    elif program == "poprun":
        check_convoy(["launch", *rest], folder, whole)
    elif program == "make":
        assert rest[0] in TARGETS, f"make has no target {rest[0]}"
    elif program == "pip":
        check_pip(rest, folder)
    elif program == "curl":
        assert any("http://127.0.0.1:8501/v1/models/" in word for word in rest)
    else:
        assert program in PROGRAMS, f"{program} is not known: say here how to look at it"
        check_python(rest, folder, whole)


@pytest.mark.parametrize("page", sorted({found.page for found in COMMANDS}), ids=lambda p: p.stem)
def test_commands_of_a_page_are_understood(page, monkeypatch, capsys):
    monkeypatch.setenv("DATASETS_DIR", "/data")
    wrong = []
    for command in COMMANDS:
        if command.page != page:
            continue
        try:
            check(command.words, command.folder, command.whole)
        except (AssertionError, ValueError) as error:
            wrong.append(f"{command}: {error}")
        except SystemExit:
            wrong.append(f"{command}: {capsys.readouterr().err.strip()}")
    assert not wrong


def test_commands_are_found_in_blocks_and_in_sentences():
    assert sum(command.whole for command in COMMANDS) > 50
    assert sum(not command.whole for command in COMMANDS) > 50
