"""How a command says that it was not understood."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit status of a command that was stopped by Ctrl-C, as shells have it."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), known, 1)
        advice = f" Did you mean {near[0]}?" if near else ""
        raise argparse.ArgumentError(
            action, f"{str(value)!r} is not one of {', '.join(known)}.{advice}"
        )


def stop(message: str, program: str) -> NoReturn:
    """End the program with one line and exit status 2."""
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
