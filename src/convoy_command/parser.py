"""The argument parser of all verbs: exact flags, and errors in one line."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit status of a command that was stopped by Ctrl-C, as in shells."""


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, whose errors are one line with exit status 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})
        self._words: list[str] = []

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(self._words, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):
            # A misspelt flag is the cause of a missing one.
            for word in self._words:
                if word.startswith("--") and word.split("=")[0] not in self._option_string_actions:
                    message = self._unknown(word)
                    break
            else:
                message += self._listed_actions()
        self.exit(2, f"{self.prog}: error: {one_line(self.as_typed(message, self._words))}\n")

    def _listed_actions(self) -> str:
        """Return the end of a sentence about missing words: the subcommands, if there are any."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return f". Pass one of {', '.join(action.choices)}"
        return ""

    def as_typed(self, message: str, words: Sequence[str]) -> str:
        """Replace the names of flags in a message by the aliases that a command line contains."""
        typed = {word.split("=")[0] for word in words}
        for action in self._actions:
            name, *aliases = action.option_strings or [""]
            used = [alias for alias in aliases if alias in typed]
            if used and name not in typed:
                message = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", used[-1], message)
        return message

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        known, unknown = self.parse_known_args(words, namespace)
        if unknown:
            parser = self._last_parser(words)
            parser.error(parser._unknown(unknown[0]))
        return known

    def _last_parser(self, words: Sequence[str]) -> Parser:
        """Return the parser of the last subcommand, which did not recognise some words."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for place, word in enumerate(words):
                    if word in action.choices:
                        return action.choices[word]._last_parser(words[place + 1 :])
        return self

    def check_rest(self, words: Sequence[str], other: Parser) -> None:
        """Exit with status 2 if a flag is unknown to this parser and to another one.

        Args:
            words: words that this parser did not recognise.
            other: the parser that reads them.
        """
        for word in words:
            if word.startswith("--") and word.split("=")[0] not in other._option_string_actions:
                self.error(self._unknown(word, other))

    def _unknown(self, word: str, other: Parser | None = None) -> str:
        if not word.startswith("--"):
            return f"{word!r} was not expected; flags begin with --"
        name = word[2:].split("=")[0]
        # One name for each flag: the most similar one of its aliases.
        flags = [
            max((flag[2:] for flag in action.option_strings), key=lambda flag: _ratio(name, flag))
            for action in (*self._actions, *(other._actions if other else ()))
            if action.option_strings
        ]
        near = suggestion(name, flags, "--")
        listed = f". See the flags with: {self.prog} --help" if near == "." else near
        return f"--{name} is not a flag{listed}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        raise argparse.ArgumentError(action, not_one_of(value, map(str, action.choices)))


def not_one_of(value: object, known: Iterable[str]) -> str:
    """Return a sentence about a value that is not among the known ones."""
    names = list(known)
    return f"{value!r} is not one of {', '.join(names)}{suggestion(str(value), names)}"


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the end of a sentence about an unknown word: the known words that are most similar."""

    def similarity(name: str) -> float:
        # The word may be the beginning of a longer name, with a typing error.
        return max(_ratio(word, part) for part in (name, name[: len(word)]))

    names = list(known)
    near = sorted((name for name in names if similarity(name) >= 0.7), key=similarity, reverse=True)
    # Otherwise the first part of a name may be missing.
    near = near or sorted((name for name in names if f"-{word}" in name), key=len)
    return f". Did you mean {' or '.join(prefix + name for name in near[:2])}?" if near else "."


def _ratio(word: str, name: str) -> float:
    """Return the similarity of two words, from 0 to 1."""
    return difflib.SequenceMatcher(None, word, name).ratio()


def one_line(text: object) -> str:
    """Return a text, such as another library's error, with spaces in place of line breaks."""
    return " ".join(str(text).split())


def failed(program: str, error: object, status: int = 1) -> int:
    """Print an error on stderr, and return the exit status."""
    print(f"{program}: error: {error}", file=sys.stderr)
    return status


def stop(message: str, program: str) -> NoReturn:
    """Exit with one line on stderr and status 2."""
    raise SystemExit(failed(program, one_line(message), 2))
