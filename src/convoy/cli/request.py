"""`convoy request`: load on a server, and its throughput and latency."""

import os
import sys
from collections.abc import Sequence

from convoy.configuration import ConfigurationError, add_flags, read
from convoy.serving.client import TOKEN_VARIABLE, RequestError, await_listener
from convoy.serving.load_generator import LoadOptions, send_load
from convoy_command.parser import Parser

PROGRAM = "convoy request"
# Time for a server that was started at the same moment to listen.
LISTENER_SECONDS = 60.0


def main(words: Sequence[str]) -> int:
    """Send images to a server, and measure it."""
    parser = make_parser()
    environment = {"token": os.environ.get(TOKEN_VARIABLE) or None}
    try:
        options = read(LoadOptions, environment | vars(parser.parse_args(words)), flags=True)
    except ConfigurationError as error:
        parser.error(str(error))
    try:
        await_listener(options.address, LISTENER_SECONDS, _print_error)
        result = send_load(options)
    except RequestError as error:
        _print_error(f"error: {error}")
        return 1
    print("\n".join(result.lines()))
    return 1 if result.failures else 0


def _print_error(message: str) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)


def make_parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Send images to a server, and measure it.")
    add_flags(parser, LoadOptions, LoadOptions)
    return parser
