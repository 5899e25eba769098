"""`convoy checkpoint`: inspection, verification, averaging and conversion of checkpoints."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from convoy.checkpoint import convert, inspection, store
from convoy.checkpoint.errors import CheckpointError, DamagedError
from convoy.units import format_count
from convoy_command.parser import Parser, failed

PROGRAM = "convoy checkpoint"
SUMMARY = "List, show, verify, average and convert checkpoints."
_TARGET = "a .keras or .weights.h5 file, or the folder of a checkpoint"


def make_parser() -> Parser:
    parser = Parser(prog=PROGRAM, description=SUMMARY)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="the checkpoints in a folder, oldest first")
    listing.set_defaults(run=_list)
    listing.add_argument("folder", type=Path)

    showing = actions.add_parser(
        "show", help="the content of a checkpoint, or of the newest in a folder"
    )
    showing.set_defaults(run=_show)
    showing.add_argument("checkpoint", type=Path)
    showing.add_argument(
        "--hash", action="store_true", help="end with a hash of the whole state, bit for bit"
    )

    verifying = actions.add_parser("verify", help="verify all checksums")
    verifying.set_defaults(run=_verify)
    verifying.add_argument("checkpoint", type=Path, nargs="+")

    averaging = actions.add_parser("average", help="average the weights of several checkpoints")
    averaging.set_defaults(run=_average)
    averaging.add_argument("checkpoint", type=Path, nargs="+")
    averaging.add_argument("--output", type=Path, required=True, help=_TARGET)

    converting = actions.add_parser("convert", help="convert to and from .keras and .weights.h5")
    converting.set_defaults(run=_convert)
    converting.add_argument("source", type=Path, help="a checkpoint, .keras or .weights.h5")
    converting.add_argument("target", type=Path, help=_TARGET)
    converting.add_argument(
        "--model", type=Path, help="a .keras file of the model, if the source has only weights"
    )
    return parser


def main(words: Sequence[str]) -> int:
    """List, show, verify, average and convert checkpoints."""
    options = make_parser().parse_args(words)
    try:
        return options.run(options)
    except (CheckpointError, OSError, ValueError) as error:
        return failed(PROGRAM, error)


def _list(options: argparse.Namespace) -> int:
    print("\n".join(inspection.list_lines(options.folder)))
    return 0


def _show(options: argparse.Namespace) -> int:
    print("\n".join(inspection.describe_lines(options.checkpoint, options.hash)))
    return 0


def _verify(options: argparse.Namespace) -> int:
    damaged = 0
    for given in options.checkpoint:
        for path in inspection.find_all(given):
            error = inspection.verify(path)
            damaged += error is not None
            verdict = "DAMAGED" if isinstance(error, DamagedError) else "NOT VERIFIED"
            print(f"{path}  intact" if error is None else f"{path}  {verdict}: {error}")
    return 1 if damaged else 0


def _average(options: argparse.Namespace) -> int:
    paths = [path for given in options.checkpoint for path in inspection.find_all(given)]
    convert.write(convert.average([store.read(path) for path in paths]), options.output)
    print(f"{options.output}: the average of {format_count(len(paths), 'checkpoint')}")
    return 0


def _convert(options: argparse.Namespace) -> int:
    if convert.is_keras_file(options.source):
        checkpoint = convert.read(options.source, options.model)
    else:
        _, checkpoint = inspection.find(options.source)
    convert.write(checkpoint, options.target, options.model)
    print(options.target)
    return 0
