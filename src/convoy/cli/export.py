"""`convoy export`: export of a trained model as a new version for a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import keras
from convoy.checkpoint import CheckpointError, convert
from convoy.cli.train import parse
from convoy.data.catalog import Normalisation
from convoy.serving.export import BATCH_SIZES, Format, export
from convoy.train.run_folder import find_checkpoints
from convoy.train.serving_model import make_serving_model, preprocessing_from_bytes
from convoy_command.parser import Parser

PROGRAM = "convoy export"
RECIPE = "recipe.yml"


def main(words: Sequence[str], program: str = PROGRAM) -> int:
    """Write a trained model as a new version in a folder."""
    options, rest = make_parser(program).parse_known_args(words)
    try:
        model, settings = _find_model(options, rest, program)
        if options.class_names is not None:
            settings["class_names"] = _read_names(options.class_names)
        path = export(
            model,
            options.export_dir,
            version=options.version,
            batch_sizes=options.batch_sizes,
            format=options.format,
            **settings,
        )
    except (CheckpointError, OSError, ValueError) as error:
        print(f"{program}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(path)
    return 0


def make_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    parser = Parser(
        prog=program,
        allow_abbrev=False,
        description="Write a trained model as a new version that convoy serve can serve.",
        epilog="Weights of convoy train (.weights.h5) need the flags of their training: they are "
        "read from the run's folder, and those of convoy train may be given here too.",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        help="a folder of convoy.Checkpoints or of convoy train, a .keras or a .weights.h5 file "
        "(default: random weights)",
    )
    parser.add_argument("--export-dir", type=Path, required=True, help="the model's folder")
    parser.add_argument("--version", type=int, help="version number (default: the newest plus one)")
    parser.add_argument(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=list(BATCH_SIZES),
        help="batch sizes to compile for",
    )
    parser.add_argument(
        "--class-names", type=Path, help="a file with the name of a class on each line"
    )
    parser.add_argument(
        "--format",
        choices=get_args(Format),
        default="convoy",
        help="for other servers: onnx (with that package), saved_model (with tensorflow)",
    )
    parser.add_argument(
        "--preprocessing",
        choices=get_args(Normalisation),
        help="normalisation of uint8 images in the exported model (default: that of convoy train)",
    )
    return parser


def _find_model(
    options: argparse.Namespace, rest: list[str], program: str
) -> tuple[keras.Model, dict[str, Any]]:
    """Return the model, and the arguments of `export` that depend on its source."""
    given: Path | None = options.checkpoint
    if given is not None and not given.exists():
        raise ValueError(f"--checkpoint {given}: there is no such file or folder.")
    if given is None or given.name.endswith(".weights.h5") or (given / RECIPE).is_file():
        return _model_of_training(given, rest, program)
    if rest:
        raise ValueError(
            f"{rest[0]} is not a flag of convoy export, and {given} needs no flags of convoy train."
        )
    model = convert.load_model(given)
    kind = options.preprocessing
    return model, {"preprocessing": None if kind is None else preprocessing_from_bytes(kind)}


def _read_names(file: Path) -> list[str]:
    try:
        return [name for name in file.read_text().split("\n") if name]
    except OSError as error:
        raise ValueError(
            f"--class-names {file}: {error.strerror}. Pass a file with a name on each line."
        ) from None


def _model_of_training(
    given: Path | None, rest: list[str], program: str
) -> tuple[keras.Model, dict[str, Any]]:
    run = given
    if given is not None and given.is_file():
        # Checkpoints are in a subfolder of the run's folder.
        run = given.resolve().parent.parent
    if run is not None and (run / RECIPE).is_file():
        rest = ["--config-path", str(run / RECIPE), "--config", "run", *rest]
    weights = given
    if given is not None and given.is_dir():
        found = find_checkpoints(given / "checkpoints")
        if not found:
            raise ValueError(f"{given} has no checkpoint.")
        weights = found[-1]
    flags = parse(rest, program)
    if weights is None:
        print(f"{program}: No --checkpoint was given: the weights are random.", file=sys.stderr)
    network = make_serving_model(flags, weights)
    settings = {"preprocessing": network.preprocessing, "class_names": network.class_names}
    return network.model, settings
