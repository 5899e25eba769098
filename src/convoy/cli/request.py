"""`convoy request`: load on a server, and its throughput and latency."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from convoy.cli.serve import TOKEN
from convoy.data.catalog import DATASETS
from convoy.serving.client import Address, RequestError, await_listener
from convoy.serving.load_generator import LoadOptions, send_load
from convoy_command.parser import Parser

PROGRAM = "convoy request"
DEFAULT_PORTS = {"grpc": 8500, "rest": 8501}
# Time for a server that was started at the same moment to listen.
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
        protocol=options.protocol,
        processes=options.processes,
        images=options.num_images,
        batch_size=options.batch_size,
        asynchronous=options.use_async,
        seconds=options.request_seconds,
        dataset=options.dataset,
        dataset_path=options.dataset_path,
        verbose=options.verbose,
    )
    try:
        await_listener(load.address, LISTENER_SECONDS, _print_error)
        result = send_load(load)
    except RequestError as error:
        _print_error(f"error: {error}")
        return 1
    print("\n".join(result.lines()))
    return 1 if result.failures else 0


def _print_error(message: str) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)


def make_parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Send images to a server, and measure it.")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument(
        "--host", default="127.0.0.1", help="the server's host (default: this machine)"
    )
    parser.add_argument("--port", type=int, help="default: 8500 for gRPC, 8501 for REST")
    parser.add_argument(
        "--protocol", choices=tuple(DEFAULT_PORTS), default="grpc", help="default: grpc"
    )
    parser.add_argument("--token", help=f"the server's token (default: the variable {TOKEN})")
    parser.add_argument("--processes", type=int, default=2, help="number of processes (default: 2)")
    parser.add_argument("--num-images", type=int, default=1000, help="per process (default: 1000)")
    parser.add_argument("--batch-size", type=int, default=1, help="images per request (default: 1)")
    parser.add_argument("--use-async", action="store_true", help="send without waiting for answers")
    parser.add_argument(
        "--request-seconds",
        type=float,
        default=10.0,
        help="timeout of a request (default: 10)",
    )
    parser.add_argument(
        "--dataset",
        choices=tuple(DATASETS),
        help="send its test images (default: random images)",
    )
    parser.add_argument("--dataset-path", default=".", help="folder of the dataset")
    parser.add_argument("--verbose", action="store_true", help="print the latency of each request")
    return parser
