"""The command line: one verb for each thing that `convoy` does."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import select
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import shtab
from convoy_command import ended_by_interrupt
from convoy_command.parser import INTERRUPTED, Parser

READER_LEFT = 141
"""The exit status where nobody read the output to its end, as shells have it: 128 and SIGPIPE."""
SHELLS = ("bash", "zsh", "fish")
# Where each shell looks for completions of one user, without being told.
FOLDERS = {
    "bash": "~/.local/share/bash-completion/completions/convoy",
    "zsh": "a folder of $fpath, as _convoy",
    "fish": "~/.config/fish/completions/convoy.fish",
}


class Verb(NamedTuple):
    """What a word on the command line means.

    Attributes:
        summary: in a line.
        main: the function that runs it, as `module:name`; loaded when it is needed.
        parser: the function that makes its parser.
    """

    summary: str
    main: str
    parser: str


def _verb(summary: str, module: str) -> Verb:
    return Verb(summary, f"{module}:main", f"{module}:make_parser")


VERBS = {
    "train": _verb(
        "Train and validate an image classifier, from flags or a recipe.", "convoy.cli.train"
    ),
    "launch": _verb("Run a script in several processes, on one host or many.", "convoy.cli.launch"),
    "checkpoint": _verb(
        "List, show, verify, average and convert checkpoints.", "convoy.cli.checkpoint"
    ),
    "export": _verb("Export a trained model as a version that can be served.", "convoy.cli.export"),
    "serve": _verb("Serve exported models through TensorFlow Serving's APIs.", "convoy.cli.serve"),
    "request": _verb("Send images to a server and measure it.", "convoy.cli.request"),
    "report": _verb("Turn a recorded run into a page, or compare two.", "convoy.cli.report"),
    "plan": _verb(
        "Predict how best to divide a model over devices: replicas, stages, micro-batches.",
        "convoy.cli.plan",
    ),
    "bench": _verb(
        "Run benchmark specs and compare the results with an earlier run.",
        "convoy.cli.bench",
    ),
    "data": _verb(
        "Verify data sets, build ImageNet record files, measure reading.",
        "convoy.cli.data",
    ),
    "doctor": _verb(
        "Show what is installed, which devices and kernels there are, and what is wrong.",
        "convoy.cli.doctor",
    ),
    "completion": Verb(
        "Print a script with which a shell completes this command.",
        "convoy_command.cli:completion",
        "convoy_command.cli:make_completion_parser",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            return _run_verb(words) if words and words[0] in VERBS else _run_alone(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_left():
            raise
        return READER_LEFT


def _reader_has_left() -> bool:
    """Say whether nobody reads the standard output any more, as after `| head`; then drop it."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)  # errors are told in any case
    if not poll.poll(0):
        return False
    # Python writes what is left when it ends, and would complain again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def _run_verb(words: Sequence[str]) -> int:
    try:
        return _run(VERBS[words[0]], words[1:])
    except KeyboardInterrupt:
        print(f"convoy {words[0]}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run_alone(words: Sequence[str]) -> int:
    """Answer what has no verb: help, the version, a word that is not known."""
    parser = make_parser()
    if words and not words[0].startswith("-"):
        near = difflib.get_close_matches(words[0], VERBS, 1)
        advice = f"Did you mean {near[0]}?" if near else "convoy --help lists all."
        parser.error(f"{words[0]!r} is not a verb. {advice}")
    if not words:
        parser.print_help()
        return 2
    if parser.parse_args(words).version:
        print(f"convoy {metadata.version('keras-convoy')}")
    return 0


def make_parser() -> Parser:
    """Return the parser of the first word; what follows is for the verbs' own."""
    parser = Parser(
        prog="convoy",
        description="Train and serve plain Keras models as compiled device programs.",
        epilog="Run convoy VERB --help for the flags of a verb.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, verb in VERBS.items():
        verbs.add_parser(name, help=verb.summary, description=verb.summary)
    return parser


def make_whole_parser() -> Parser:
    """Return the parser of all words; verbs whose packages are not installed have no flags."""
    parser = make_parser()
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, verb in VERBS.items():
        try:
            verbs.choices[name] = load(verb.parser)()
        except ModuleNotFoundError:
            continue
    return parser


def load(function: str) -> Callable[..., Any]:
    """Return a function by its name, `module:name`."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def _run(verb: Verb, words: Sequence[str]) -> int:
    try:
        with ended_by_interrupt():
            run = load(verb.main)
    except ModuleNotFoundError as error:
        if not verb.main.startswith("convoy.serving"):
            raise
        print(
            f"convoy: error: {error.name} is not installed. Install what the server needs with: "
            f"pip install {' '.join(load('convoy.cli.doctor:missing')('serving'))}",
            file=sys.stderr,
        )
        return 1
    return run(words)


def make_completion_parser() -> Parser:
    places = "\n".join(f"  convoy completion {shell:<4} > {FOLDERS[shell]}" for shell in SHELLS)
    parser = Parser(
        prog="convoy completion",
        description="Print a script with which a shell completes this command.",
        epilog=f"To install it for one user, from the next shell on:\n{places}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)
    return parser


def completion(words: Sequence[str]) -> int:
    """Print a script with which a shell completes this command."""
    shell = make_completion_parser().parse_args(words).shell
    parser = make_whole_parser()
    _complete_values(parser)
    print(shtab.complete(parser, shell))
    return 0


def _complete_values(parser: argparse.ArgumentParser) -> None:
    """Have arguments that are files completed by the files there are, others by their words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _complete_values(below)
        elif words := getattr(action, "words", None):
            action.choices = words
        elif action.type is Path or action.dest.endswith(("_path", "_dir", "file", "program")):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
