"""`convoy train`: trains and validates an image classifier."""

import argparse
import sys
from collections.abc import Sequence

from convoy.checkpoint import CheckpointError
from convoy.configuration import ConfigurationError, add_flags
from convoy.engine.out_of_memory import DeviceMemoryError
from convoy.train.application import Application
from convoy.train.flags import Options
from convoy.train.multi_process import as_one_run
from convoy.train.recipe import RECIPES, read_options, recipes_in
from convoy_command.parser import Parser, failed, stop

PROGRAM = "convoy train"


def make_parser(program: str = PROGRAM, schema: type[Options] = Options) -> Parser:
    parser = Parser(
        prog=program,
        usage=f"{program} [--flag value ...]",
        description="Train and validate an image classifier.",
        epilog="A first run, on digits that come with the package:\n"
        "  convoy train --model cifar_resnet8 --dataset digits --epochs 10\n\n"
        "Flags have priority over the recipe, and the recipe over the defaults; with --resume,\n"
        "the options of the earlier run replace the defaults.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_training_flags(parser, schema)
    return parser


def add_training_flags(parser: Parser, schema: type[Options] = Options) -> None:
    """Add the flags of `convoy train`, or of a schema that extends them, to a parser."""
    add_flags(parser, schema, schema())
    config = next(action for action in parser._actions if action.dest == "config")
    # For shell completion; another recipe file has other names.
    config.words = list(recipes_in(RECIPES))  # type: ignore[attr-defined]


def parse(
    words: Sequence[str],
    program: str = PROGRAM,
    defaults: str | None = None,
    schema: type[Options] = Options,
) -> Options:
    """Return the options of a command line; exits with status 2 if they are not valid.

    Args:
        words: command line without the program's name.
        program: name of the program in messages.
        defaults: name of the recipe with the defaults, as in `read_options`.
        schema: class of the options that are flags.
    """
    parser = make_parser(program, schema)
    flags = vars(parser.parse_args(words))
    try:
        return read_options(flags, defaults)
    except ConfigurationError as error:
        parser.error(str(error))


def main(
    words: Sequence[str] | None = None,
    program: str = PROGRAM,
    defaults: str | None = None,
    error_prefix: str = "",
    schema: type[Options] = Options,
) -> int:
    """Train and validate an image classifier.

    Args:
        words: command line without the program's name; by default that of this process.
        program: name of the program in messages.
        defaults: name of the recipe with the defaults, as in `read_options`.
        error_prefix: beginning of messages about options that are not possible.
        schema: class of the options that are flags.

    Returns:
        The exit status.
    """
    words = sys.argv[1:] if words is None else words
    options = parse(words, program, defaults, schema)
    try:
        with as_one_run(options) as (options, output):
            return Application(options, output).run()
    except ValueError as error:
        message = make_parser(program, schema).as_typed(str(error), words)
        stop(f"{error_prefix}{message}", program)
    except (FloatingPointError, CheckpointError, DeviceMemoryError) as error:
        return failed(program, error)
