"""`convoy serve`: a server of exported models over HTTP and gRPC."""

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from convoy.configuration import add_flags, override, read
from convoy.serving.client import TOKEN_VARIABLE
from convoy.serving.config import read_config
from convoy.serving.flags import ServerOptions
from convoy.serving.server import Server, serve_until_stopped
from convoy.serving.versions import ModelConfig
from convoy_command.parser import Parser, failed

PROGRAM = "convoy serve"
# Time for which a thread may run while others wait.
SWITCH_SECONDS = 0.0005


def main(words: Sequence[str]) -> int:
    """Serve exported models by TensorFlow Serving's APIs."""
    parser = make_parser()
    flags = vars(parser.parse_args(words))
    try:
        models = [_parse_model(word) for word in flags.pop("model")]
        config = flags.pop("config")
        if config is not None:
            models += read_config(config)
        _check_models(models)
        from_file = flags.get("token_file") is not None
        environment = {"token": None if from_file else os.environ.get(TOKEN_VARIABLE)}
        options = read(ServerOptions, override(environment, flags), flags=True)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    _log_to_stderr()
    try:
        # By default 5 ms. A request changes threads several times, so the decoding of another
        # client's large request would delay it by a multiple of that.
        sys.setswitchinterval(SWITCH_SECONDS)
        asyncio.run(_run(models, options))
    except (OSError, ValueError) as error:
        return failed(PROGRAM, error)
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
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a model to serve; may be repeated",
    )
    parser.add_argument(
        "--config", type=Path, help="a YAML file that lists models, versions and labels"
    )
    add_flags(parser, ServerOptions, ServerOptions())
    return parser


def _parse_model(word: str) -> ModelConfig:
    name, equals, folder = word.partition("=")
    if not (name and equals and folder):
        raise ValueError(
            f"--model {word} is not NAME=FOLDER. Pass for example lenet=exports/lenet."
        )
    return ModelConfig(name, Path(folder))


def _check_models(models: Sequence[ModelConfig]) -> None:
    names = [model.name for model in models]
    if not names:
        raise ValueError("There is no model to serve. Pass --model NAME=FOLDER or --config FILE.")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Two models are called {name}. Give each its own name.")
        if "/" in name or ":" in name:
            raise ValueError(f"A model is called {name}. Pass a name without / and :.")
    for model in models:
        if not model.path.is_dir():
            raise ValueError(f"{model.name}: {model.path} is not a folder. Export a model there.")
