"""`convoy request`: load on a server, and its throughput and latency."""

import os
import sys
import time
from collections.abc import Sequence

from convoy.configuration import ConfigurationError, add_flags, read
from convoy.progress_bar import Output
from convoy.serving.client import (
    FIRST_SECONDS,
    TOKEN_VARIABLE,
    RequestError,
    await_listener,
    await_model,
)
from convoy.serving.load_generator import LoadOptions, send_load
from convoy_command.parser import Parser, failed

PROGRAM = "convoy request"
# Time for a server that was started at the same moment to listen.
LISTENER_SECONDS = 60.0
# Time between two lines about the progress, where there is no terminal.
LINE_SECONDS = 10.0


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
        await_model(options.protocol, options.address, FIRST_SECONDS, _print_error)
        progress = _Progress(options)
        try:
            result = send_load(options, progress.show)
        finally:
            progress.output.end()
    except RequestError as error:
        return failed(PROGRAM, error)
    print("\n".join(result.lines()))
    return 1 if result.failures else 0


class _Progress:
    """Shows the progress on the standard error."""

    def __init__(self, options: LoadOptions) -> None:
        self.options, self.output = options, Output(sys.stderr, LINE_SECONDS)
        self._began = 0.0
        self._first = 0

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not done:
            return
        if not self._began:
            self._began = now
            self._first = done
            self.output.begin(total, "sending ...")
        images = (done - self._first) * self.options.batch_size
        shown = f"{images / max(1e-9, now - self._began):,.1f} images/s"
        line = f"{PROGRAM}: {done:,} of {total:,} requests, {shown}"
        self.output.advance(done, "requests", {"": shown}, line)


def _print_error(message: str) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)


def make_parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Send images to a server, and measure it.")
    add_flags(parser, LoadOptions, LoadOptions)
    return parser
