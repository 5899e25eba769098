"""`convoy completion`: prints a completion script for a shell."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import shtab
from convoy_command.cli import make_whole_parser
from convoy_command.parser import Parser

# Where each shell looks for completions of one user.
FOLDERS = {
    "bash": "~/.local/share/bash-completion/completions/convoy",
    "zsh": "a folder of $fpath, as _convoy",
    "fish": "~/.config/fish/completions/convoy.fish",
}


def make_parser() -> Parser:
    places = "\n".join(f"  convoy completion {shell:<4} > {FOLDERS[shell]}" for shell in FOLDERS)
    parser = Parser(
        prog="convoy completion",
        description="Print a completion script for a shell.",
        epilog=f"To install it for one user, from the next shell on:\n{places}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=tuple(FOLDERS))
    return parser


def main(words: Sequence[str]) -> int:
    """Print a completion script for a shell."""
    shell = make_parser().parse_args(words).shell
    parser = make_whole_parser()
    _complete_values(parser)
    print(shtab.complete(parser, shell))
    return 0


def _complete_values(parser: argparse.ArgumentParser) -> None:
    """Complete arguments that are paths with files, and others with the words they accept."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _complete_values(subparser)
        elif words := getattr(action, "words", None):
            action.choices = words
        elif action.type is Path or action.dest.endswith(("_path", "_dir", "file", "program")):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
