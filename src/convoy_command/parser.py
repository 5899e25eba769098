"""How a command says that it was not understood."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit status of a command that was stopped by Ctrl-C, as shells have it."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        known, unknown = self.parse_known_args(words, namespace)
        if unknown:
            reader = self._reader(words)
            reader.error(reader._unknown(unknown[0]))
        return known

    def _reader(self, words: Sequence[str]) -> Parser:
        """Return the parser of the last verb: words that are not known were left over by it."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for place, word in enumerate(words):
                    if word in action.choices:
                        return action.choices[word]._reader(words[place + 1 :])
        return self

    def _unknown(self, word: str) -> str:
        if not word.startswith("--"):
            return f"{word!r} was not expected; flags begin with --"
        name = word[2:].split("=")[0]
        flags = [flag[2:] for flag in self._option_string_actions if flag.startswith("--")]
        return f"--{name} is not a flag{suggestion(name, flags, '--')}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), known, 1)
        advice = f" Did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentError(
            action, f"{str(value)!r} is not one of {', '.join(known)}.{advice}"
        )


def suggestion(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return how a sentence about a word that is not known ends: with those that it is near to."""

    def likeness(name: str) -> float:
        # Names may be shortened, so a slip may be in the beginning of one.
        return max(
            difflib.SequenceMatcher(None, word, part).ratio() for part in (name, name[: len(word)])
        )

    names = list(known)
    near = sorted((name for name in names if likeness(name) >= 0.7), key=likeness, reverse=True)
    # Else the first word of a name was left out.
    near = near or sorted((name for name in names if f"-{word}" in name), key=len)
    return f". Did you mean {' or '.join(prefix + name for name in near[:2])}?" if near else "."


def stop(message: str, program: str) -> NoReturn:
    """End the program with one line and exit status 2."""
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
