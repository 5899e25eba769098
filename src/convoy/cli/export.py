"""`convoy export`: export of a trained model as a new version for a server."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import keras
import numpy as np
from convoy.checkpoint import CheckpointError, convert
from convoy.cli.train import make_parser as make_training_parser
from convoy.cli.train import parse
from convoy.configuration import Configuration, Option, Whole, add_flags, read
from convoy.data.catalog import Normalisation, load
from convoy.data.image_folder import FOLDER
from convoy.error_messages import system_reason
from convoy.precision import CHOICES
from convoy.serving.accuracy import read_samples
from convoy.serving.batch_sizes import BATCH_SIZES
from convoy.serving.export import Format, export
from convoy.train.flags import Options
from convoy.train.run_folder import ENDING, RUN, RunFolder, find_checkpoints
from convoy.train.serving_model import make_serving_model, preprocessing_from_bytes
from convoy_command.parser import Parser

PROGRAM = "convoy export"
# Enough for the share of equal top-1 classes to be known within a percent.
MAX_HELD_OUT = 1000


@dataclass(frozen=True)
class ExportOptions(Configuration, all_flags=True):
    """The options of `convoy export`.

    model:
        checkpoint: a folder of convoy.Checkpoints or of convoy train, a .keras or a .weights.h5
            file (default: random weights)
        class_names: a file with the name of a class on each line
        preprocessing: normalisation of uint8 images in the exported model (default: that of convoy
            train)
        precision: the precision to compute in; auto is the fastest one on this device (default:
            that of the model)
        samples: an .npz file with samples, on which the difference from float32 is measured
            (default: held-out images of the run's dataset, if their folder is known)

    export:
        export_dir: the model's folder
        version: version number (default: the newest plus one)
        batch_sizes: batch sizes to compile for
        format: for other servers: onnx (needs that package) or saved_model (needs tensorflow)
    """

    export_dir: Path
    checkpoint: Path | None = None
    class_names: Path | None = None
    preprocessing: Normalisation | None = None
    precision: Annotated[str | None, Option(choices=CHOICES)] = None
    samples: Path | None = None
    version: Whole | None = None
    batch_sizes: tuple[Whole, ...] = BATCH_SIZES
    format: Format = "convoy"


def main(words: Sequence[str]) -> int:
    """Write a trained model as a new version in a folder."""
    parser = make_parser()
    flags, training_flags = parser.parse_known_args(words)
    parser.check_rest(training_flags, make_training_parser())
    try:
        options = read(ExportOptions, vars(flags), flags=True)
        # Before the model is made, which takes longer.
        samples = None if options.samples is None else read_samples(options.samples)
        model, settings = _find_model(options, training_flags)
        if options.class_names is not None:
            settings["class_names"] = _read_names(options.class_names)
        if samples is not None:
            settings["samples"] = samples
        sizes = ", ".join(map(str, options.batch_sizes))
        print(f"{PROGRAM}: exporting {model.name} for batch sizes {sizes} ...", file=sys.stderr)
        path = export(
            model,
            options.export_dir,
            precision=options.precision,
            version=options.version,
            batch_sizes=options.batch_sizes,
            format=options.format,
            **settings,
        )
    except (CheckpointError, OSError, ValueError) as error:
        parser.error(str(error))
    print(path)
    return 0


def make_parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="Write a trained model as a new version that convoy serve can serve.",
        epilog="Weights of convoy train (.weights.h5) need the flags of their training: they are "
        "read from the run's folder, and those of convoy train may be given here too.",
    )
    add_flags(parser, ExportOptions)
    return parser


def _find_model(
    options: ExportOptions, training_flags: list[str]
) -> tuple[keras.Model, dict[str, Any]]:
    """Return the model, and the arguments of `export` that depend on its source."""
    given, kind = options.checkpoint, options.preprocessing
    if given is not None and not given.exists():
        raise ValueError(f"--checkpoint {given}: there is no such file or folder. Pass its path.")
    if given is None or given.name.endswith(ENDING) or RunFolder(given).recipe.is_file():
        return _model_of_training(options, training_flags)
    if training_flags:
        raise ValueError(
            f"{training_flags[0]} is a flag of convoy train, which {given} does not need. Leave it "
            "out."
        )
    preprocessing = None if kind is None else preprocessing_from_bytes(kind)
    return convert.load_model(given), {"preprocessing": preprocessing}


def _read_names(file: Path) -> list[str]:
    try:
        return [name for name in file.read_text().split("\n") if name]
    except OSError as error:
        raise ValueError(
            f"--class-names {file}: {system_reason(error)}. Pass a file with a name on each line."
        ) from None


def _model_of_training(
    chosen: ExportOptions, training_flags: list[str]
) -> tuple[keras.Model, dict[str, Any]]:
    weights = given = chosen.checkpoint
    if given is not None:
        # Checkpoints are in a subfolder of the run's folder.
        run = RunFolder(given if given.is_dir() else given.resolve().parent.parent)
        if run.recipe.is_file():
            recipe = ["--config-path", str(run.recipe), "--config", RUN]
            training_flags = [*recipe, *training_flags]
        if given.is_dir():
            found = find_checkpoints(run.checkpoints)
            if not found:
                raise ValueError(f"{given} has no checkpoint. Pass the folder of another run.")
            weights = found[-1]
    options = parse(training_flags, PROGRAM)
    if weights is None:
        print(f"{PROGRAM}: No --checkpoint was given: the weights are random.", file=sys.stderr)
    made = make_serving_model(options, weights)
    return made.model, {
        "preprocessing": made.preprocessing,
        "class_names": made.class_names,
        "samples": None if chosen.precision is None else _held_out(options),
    }


def _held_out(options: Options) -> np.ndarray | None:
    """Return held-out images of a run's dataset, unless they are files or must be downloaded."""
    has_folder = options.dataset_path != Options.dataset_path
    if options.dataset not in ("imagenet", FOLDER) and (options.dataset == "digits" or has_folder):
        images, _ = load(options.dataset, options.dataset_path).test
        return images[:MAX_HELD_OUT]
    return None
