"""`convoy request`: images to a server, from several processes, and how fast answers come."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from convoy.cli.serve import TOKEN
from convoy.data.catalog import DATASETS
from convoy.serving.client import Address, RequestError, await_listener
from convoy.serving.load import LoadOptions, Outcome, send_load
from convoy_command.parser import Parser

PROGRAM = "convoy request"
DEFAULT_PORTS = {"grpc": 8500, "rest": 8501}
# A server that was started at the same moment listens by then.
LISTENER_SECONDS = 60.0


def main(words: Sequence[str]) -> int:
    """Send images to a server, and measure it."""
    parser = make_parser()
    options = parser.parse_args(words)
    for name in ("processes", "num_images", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: pass 1 or more.")
    port = DEFAULT_PORTS[options.protocol] if options.port is None else options.port
    token = options.token or os.environ.get(TOKEN) or None
    load = LoadOptions(
        Address(options.host, port, options.model, token),
        options.protocol,
        options.processes,
        options.num_images,
        options.batch_size,
        options.use_async,
        options.request_seconds,
        options.dataset,
        options.dataset_path,
        options.verbose,
    )
    try:
        await_listener(load.address, LISTENER_SECONDS, _tell)
        outcome = send_load(load)
    except RequestError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    report(outcome)
    return 1 if outcome.failures else 0


def _tell(message: str) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)


def make_parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Send images to a server, and measure it.")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--host", default="127.0.0.1", help="of the server (default: this machine)")
    parser.add_argument("--port", type=int, help="default: 8500 for gRPC, 8501 for REST")
    parser.add_argument(
        "--protocol", choices=tuple(DEFAULT_PORTS), default="grpc", help="default: grpc"
    )
    parser.add_argument("--token", help=f"what the server asks for (default: the variable {TOKEN})")
    parser.add_argument(
        "--processes", type=int, default=2, help="how many processes send (default: 2)"
    )
    parser.add_argument("--num-images", type=int, default=1000, help="per process (default: 1000)")
    parser.add_argument("--batch-size", type=int, default=1, help="images per request (default: 1)")
    parser.add_argument("--use-async", action="store_true", help="send without waiting for answers")
    parser.add_argument(
        "--request-seconds",
        type=float,
        default=10.0,
        help="how long to wait for an answer (default: 10)",
    )
    parser.add_argument(
        "--dataset",
        choices=tuple(DATASETS),
        help="send its held-out images (default: made-up images)",
    )
    parser.add_argument("--dataset-path", default=".", help="folder of the data set")
    parser.add_argument("--verbose", action="store_true", help="tell the latency of each request")
    return parser


def report(outcome: Outcome) -> None:
    """Print what a load took."""
    options = outcome.options
    print(f"Full time in ms: {1000 * outcome.seconds:.2f}")
    total = options.requests * options.batch_size
    print(
        f"Processed num_images * num_threads: {total} * {options.processes} = "
        f"{outcome.answered * options.batch_size}"
    )
    if total != options.images:
        print(
            f"Each process sent {total} images, not {options.images}: {options.requests} whole "
            f"batches of {options.batch_size}"
        )
    print(f"Average throughput: {outcome.throughput:.2f} samples/sec")
    if outcome.answered:
        p50, p95, p99 = outcome.milliseconds(50, 95, 99)
        print(f"Latency in ms: p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f}")
    if outcome.accuracy is not None:
        print(f"Accuracy: {outcome.accuracy:.2%}")
    if outcome.failures:
        print(f"Failed requests: {len(outcome.failures)}; the first: {outcome.failures[0]}")
