"""`convoy serve`: a server of exported models over HTTP and gRPC."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from convoy.serving.batching import BatchOptions
from convoy.serving.config import read_config
from convoy.serving.server import Server, ServerOptions, serve_until_stopped
from convoy.serving.versions import ModelConfig
from convoy_command.parser import Parser

PROGRAM = "convoy serve"
TOKEN = "CONVOY_SERVING_TOKEN"


def main(words: Sequence[str]) -> int:
    """Serve exported models by TensorFlow Serving's APIs."""
    parser = make_parser()
    options = parser.parse_args(words)
    try:
        models = [_parse_model(word) for word in options.model]
        if options.config is not None:
            models += read_config(options.config)
        _check_models(models)
        settings = _server_options(options)
    except (OSError, ValueError) as error:
        parser.error(" ".join(str(error).split()))
    _log_to_stderr()
    try:
        asyncio.run(_run(models, settings))
    except OSError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    return 0


def _log_to_stderr() -> None:
    """Log the loading and unloading of versions, but nothing of other packages."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("convoy.serving")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


async def _run(models: list[ModelConfig], options: ServerOptions) -> None:
    server = Server(models, options)

    def started() -> None:
        # Requests are accepted from now on.
        print("\n".join(server.addresses), flush=True)

    await serve_until_stopped(server, started)


def make_parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Serve models that convoy export wrote.")
    models = parser.add_argument_group("models")
    models.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a model to serve; may be repeated",
    )
    models.add_argument(
        "--config", type=Path, help="a YAML file that lists models, versions and labels"
    )
    models.add_argument(
        "--poll-seconds",
        type=float,
        default=1.0,
        help="time between searches for new versions; 0: search once (default: 1)",
    )
    models.add_argument(
        "--allow-reload", action="store_true", help="let gRPC clients change the list of models"
    )
    listening = parser.add_argument_group("listening")
    listening.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    listening.add_argument(
        "--port", type=int, default=8501, help="for REST; -1 turns it off (default: 8501)"
    )
    listening.add_argument(
        "--grpc-port", type=int, default=8500, help="for gRPC; -1 turns it off (default: 8500)"
    )
    listening.add_argument(
        "--token", help=f"token that clients must send (default: the variable {TOKEN})"
    )
    listening.add_argument("--tls-certificate", type=Path, help="a PEM file")
    listening.add_argument("--tls-key", type=Path, help="a PEM file")
    limits = parser.add_argument_group("batching and limits")
    limits.add_argument(
        "--max-batch-size",
        type=int,
        help="maximum samples per call (default: the largest exported batch size)",
    )
    limits.add_argument(
        "--batch-timeout-micros",
        type=int,
        default=0,
        help="how long a request waits for others to join its batch (default: 0)",
    )
    limits.add_argument(
        "--max-enqueued-samples",
        type=int,
        default=1000,
        help="maximum waiting samples; requests beyond are refused (default: 1000)",
    )
    limits.add_argument(
        "--max-request-bytes",
        type=int,
        default=64 << 20,
        help="maximum size of a request (default: 64 MiB)",
    )
    limits.add_argument(
        "--request-seconds",
        type=float,
        default=60.0,
        help="maximum time of a request (default: 60)",
    )
    limits.add_argument(
        "--stop-seconds",
        type=float,
        default=30.0,
        help="maximum time to finish accepted requests when stopping (default: 30)",
    )
    return parser


def _server_options(options: argparse.Namespace) -> ServerOptions:
    counts = ("max_batch_size", "max_enqueued_samples", "max_request_bytes", "request_seconds")
    for name in counts:
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} {value}: pass more than 0.")
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise ValueError("--tls-certificate and --tls-key go together. Pass both.")
    for file in (options.tls_certificate, options.tls_key):
        if file is not None and not file.is_file():
            raise ValueError(f"{file}: no such file.")
    if options.port < 0 and options.grpc_port < 0:
        raise ValueError("--port -1 and --grpc-port -1 leave nothing to listen on.")
    return ServerOptions(
        host=options.host,
        port=None if options.port < 0 else options.port,
        grpc_port=None if options.grpc_port < 0 else options.grpc_port,
        poll_seconds=max(0.0, options.poll_seconds),
        request_seconds=options.request_seconds,
        stop_seconds=options.stop_seconds,
        max_request_bytes=options.max_request_bytes,
        token=options.token or os.environ.get(TOKEN) or None,
        certificate=options.tls_certificate,
        key=options.tls_key,
        may_reload=options.allow_reload,
        batching=BatchOptions(
            options.max_batch_size,
            max(0, options.batch_timeout_micros) / 1e6,
            options.max_enqueued_samples,
        ),
    )


def _parse_model(word: str) -> ModelConfig:
    name, equals, folder = word.partition("=")
    if not (name and equals and folder):
        raise ValueError(f"--model {word}: pass NAME=FOLDER.")
    return ModelConfig(name, Path(folder))


def _check_models(models: Sequence[ModelConfig]) -> None:
    names = [model.name for model in models]
    if not names:
        raise ValueError("There is no model to serve. Pass --model NAME=FOLDER or --config FILE.")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Two models are called {name}. Give each its own name.")
        if "/" in name or ":" in name:
            raise ValueError(f"A model cannot be called {name}: its name must not contain / or :.")
    for model in models:
        if not model.path.is_dir():
            raise ValueError(f"{model.name}: {model.path} is not a folder. Export a model there.")
