"""The public flags of every verb, frozen in `golden/flags.txt`."""

import argparse

import pytest
from convoy_command import cli


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


def lines(parser):
    """Return a line for each argument of a parser, and those of the parsers below it."""
    found, below = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below += [line for one in action.choices.values() for line in lines(one)]
        elif not isinstance(action, argparse._HelpAction):
            names = ", ".join(action.option_strings) or action.dest
            found.append(" ".join([f"  {names}", *_value(action)]))
    return [parser.prog, *sorted(found), *below]


def _value(action):
    """Return how many values an argument takes, and which."""
    if action.nargs == 0:
        return
    if action.nargs is not None:
        yield f"[{action.nargs}]"
    words = action.choices or getattr(action, "words", None)
    if words and action.dest != "config":
        yield "{" + ",".join(map(str, words)) + "}"


def test_the_flags_of_all_verbs_are_those_in_the_golden_file(frozen):
    frozen("flags", "\n".join(lines(cli.make_whole_parser())))


def test_no_verb_takes_abbreviations():
    parsers = [cli.make_whole_parser()]
    for parser in parsers:
        assert not parser.allow_abbrev, parser.prog
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
    assert len(parsers) > len(cli.VERBS)
