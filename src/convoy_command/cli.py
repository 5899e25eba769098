"""The command line: one verb for each module of `convoy.cli`."""

import argparse
import difflib
import errno
import importlib
import os
import select
import sys
from collections.abc import Sequence
from importlib import metadata
from types import ModuleType

from convoy_command import ended_by_interrupt
from convoy_command.parser import INTERRUPTED, Parser, failed

READER_LEFT = 141
"""The exit status if the reader of the output ended first, as in shells: 128 and SIGPIPE."""

VERBS = {
    "train": "Train and validate an image classifier, from flags or a recipe.",
    "launch": "Run a script in several processes, on one host or many.",
    "checkpoint": "List, show, verify, average and convert checkpoints.",
    "export": "Export a trained model as a version that can be served.",
    "serve": "Serve exported models through TensorFlow Serving's APIs.",
    "request": "Send images to a server and measure it.",
    "report": "Turn a recorded run into a page, or compare two.",
    "plan": "Find the fastest parallel configuration: replicas, stages, micro-batches.",
    "compile": "Compile a run for TPUs or GPUs without access to them, and show their memory use.",
    "bench": "Run benchmark specs and compare the results with an earlier run.",
    "data": "Verify datasets, build ImageNet record files, measure input throughput.",
    "doctor": "Show installed packages, devices, kernels and problems.",
    "completion": "Print a completion script for a shell.",
}
"""Each verb with its summary. `convoy.cli.<verb>` has its functions `main` and `make_parser`."""

# Verbs that need packages beyond those of Keras and JAX, and the extra that lists them.
EXTRAS = {"serve": "serving", "request": "serving"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        try:
            return _run_verb(*words) if words and words[0] in VERBS else _run_alone(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_left():
            raise
        return READER_LEFT
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _output_is_full():
            raise
        return failed("convoy", f"the output cannot be written: {error.strerror}.")


def _output_is_full() -> bool:
    """Return whether nothing more can be written to the standard output.

    In that case further output is dropped.
    """
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        drop_output()
        return True
    return False


def _reader_has_left() -> bool:
    """Return whether the reader of the standard output has ended, as after `| head`.

    In that case further output is dropped.
    """
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)  # errors are always reported
    if not poll.poll(0):
        return False
    drop_output()
    return True


def drop_output() -> None:
    # Python flushes the rest of the output at its end, and would raise again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_verb(verb: str, *words: str) -> int:
    try:
        with ended_by_interrupt():
            module = load(verb)
    except ModuleNotFoundError as error:
        if verb not in EXTRAS:
            raise
        install = f"Install what this verb needs with: pip install 'keras-convoy[{EXTRAS[verb]}]'"
        return failed(f"convoy {verb}", f"{error.name} is not installed. {install}")
    try:
        return module.main(words)
    except KeyboardInterrupt:
        print(f"convoy {verb}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run_alone(words: Sequence[str]) -> int:
    """Handle a command without a verb: help, the version, or an unknown word."""
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
    """Return the parser of the first word; the others are for the verb's own parser."""
    parser = Parser(
        prog="convoy",
        description="Train and serve plain Keras models as compiled device programs.",
        epilog="Run convoy VERB --help for the flags of a verb.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    for name, summary in VERBS.items():
        verbs.add_parser(name, help=summary, description=summary)
    return parser


def make_whole_parser() -> Parser:
    """Return the parser of all words; verbs whose packages are not installed have no flags."""
    parser = make_parser()
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name in VERBS:
        try:
            verbs.choices[name] = load(name).make_parser()
        except ModuleNotFoundError:
            continue
    return parser


def load(verb: str) -> ModuleType:
    """Return the module of a verb, which imports JAX."""
    return importlib.import_module(f"convoy.cli.{verb}")
