"""`convoy checkpoint`: what is in checkpoints, are they whole, and into other files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from convoy.checkpoint import convert, store
from convoy.checkpoint.callback import Checkpoints
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.folder import Folder, Position
from convoy.checkpoint.store import Content, Json
from convoy.units import format_bytes
from convoy_command.parser import Parser

SUMMARY = "List, show, verify, average and convert checkpoints."


def make_parser() -> Parser:
    parser = Parser(prog="convoy checkpoint", description=SUMMARY)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="the checkpoints in a folder, oldest first")
    listing.add_argument("folder", type=Path)

    showing = actions.add_parser("show", help="what is in a checkpoint, or the newest of a folder")
    showing.add_argument("checkpoint", type=Path)
    showing.add_argument(
        "--hash",
        action="store_true",
        help="end with one hash over the whole state: equal if every bit is",
    )

    verifying = actions.add_parser("verify", help="look at every checksum")
    verifying.add_argument("checkpoint", type=Path, nargs="+")

    averaging = actions.add_parser("average", help="the mean of several checkpoints' weights")
    averaging.add_argument("checkpoint", type=Path, nargs="+")
    averaging.add_argument("--output", type=Path, required=True, help=_TARGET)

    converting = actions.add_parser("convert", help="to .keras and .weights.h5, and back")
    converting.add_argument("source", type=Path, help="a checkpoint, .keras or .weights.h5")
    converting.add_argument("target", type=Path, help=_TARGET)
    converting.add_argument(
        "--model", type=Path, help="a .keras file that describes the model, if nothing else does"
    )
    return parser


_TARGET = "a .keras or .weights.h5 file, or the folder of a checkpoint"


def main(words: Sequence[str]) -> int:
    """List, show, verify, average and convert checkpoints."""
    options = make_parser().parse_args(words)
    actions = {
        "list": _list,
        "show": _show,
        "verify": _verify,
        "average": _average,
        "convert": _convert,
    }
    try:
        return actions[options.action](options)
    except (CheckpointError, OSError, ValueError) as error:
        print(f"convoy checkpoint: {error}", file=sys.stderr)
        return 1


def _list(options: argparse.Namespace) -> int:
    folder = Folder(options.folder)
    positions = folder.positions()
    if not positions and not options.folder.exists():
        raise _nothing_in(folder)
    if not positions:
        raise CheckpointError(f"There are no checkpoints in {options.folder}.{_hint(folder)}")
    lines: dict[Position, str] = {}
    best = None
    for position in positions:
        path = folder.at(position)
        try:
            body = store.read_manifest(path)
        except CheckpointError as error:
            lines[position] = f"{position.name}  {error}"
            continue
        best = _best(body["state"])
        logs = body["state"].get("logs", {})
        values = "  ".join(f"{name} {value:.4g}" for name, value in logs.items())
        written = body["about"].get("written", "")
        line = f"{position.name}  {format_bytes(_size(path)):>9}  {written}  {values}"
        lines[position] = line.rstrip()
    for position, line in lines.items():
        print(f"{line}  (best)" if position == best else line)
    return 0


def _best(state: Json) -> Position | None:
    """Return which checkpoint was the best one when another was written, if that was asked for."""
    for callback in state.get("callbacks", []):
        if callback["type"] == Checkpoints.__name__ and callback["state"]["best"]:
            _, epoch, step = callback["state"]["best"]
            return Position(epoch, step)
    return None


def _show(options: argparse.Namespace) -> int:
    path, content = _open(options.checkpoint)
    body = store.read_manifest(path)
    state, about = content.state, content.about
    rows = [("checkpoint", str(path)), ("size", format_bytes(_size(path)))]
    if not state.get("weights_only"):
        rows += [
            ("epochs done", str(state["epoch"])),
            ("steps of the next", str(state["step"])),
            ("steps in all", str(state["total"])),
        ]
    rows += [(name, f"{value:.6g}") for name, value in state.get("logs", {}).items()]
    versions = about.get("versions", {})
    rows += [("written", about["written"])] if "written" in about else []
    rows += [("versions", ", ".join(f"{name} {number}" for name, number in versions.items()))]
    rows += [("recipe", str(about["recipe"]))] if about.get("recipe") else []
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    for name, entry in store.array_entries(body).items():
        shape = "x".join(map(str, entry["shape"])) or "scalar"
        print(f"  {entry['dtype']:<5} {shape:<16} {name}")
    if options.hash:
        print(store.state_hash(body))
    return 0


def _verify(options: argparse.Namespace) -> int:
    damaged = 0
    for given in options.checkpoint:
        for path in _all_in(given):
            try:
                store.verify(path)
            except CheckpointError as error:
                damaged += 1
                print(f"{path}  DAMAGED: {error}")
            else:
                print(f"{path}  whole")
    return 1 if damaged else 0


def _average(options: argparse.Namespace) -> int:
    paths = [path for given in options.checkpoint for path in _all_in(given)]
    convert.write(convert.average([store.read(path) for path in paths]), options.output)
    print(f"{options.output}: the mean of {len(paths)} checkpoints")
    return 0


def _convert(options: argparse.Namespace) -> int:
    if convert.is_keras_file(options.source):
        content = convert.read(options.source, options.model)
    else:
        _, content = _open(options.source)
    convert.write(content, options.target, options.model)
    print(options.target)
    return 0


def _open(given: Path) -> tuple[Path, Content]:
    """Read a checkpoint, or the newest whole one in a folder."""
    if (given / store.MANIFEST).exists():
        return given, store.read(given)
    folder = Folder(given)
    newest = folder.newest()
    if newest is None:
        raise _nothing_in(folder)
    return folder.at(newest[0]), newest[1]


def _all_in(given: Path) -> list[Path]:
    folder = Folder(given)
    paths = [folder.at(position) for position in folder.positions()] or [given]
    if paths == [given] and not given.is_dir():
        raise _nothing_in(folder)
    return paths


def _nothing_in(folder: Folder) -> CheckpointError:
    if not folder.path.exists():
        return CheckpointError(f"There is no folder {folder.path}.")
    return CheckpointError(
        f"{folder.path} is not a checkpoint, nor a folder with one in it.{_hint(folder)}"
    )


def _hint(folder: Folder) -> str:
    """Point at the checkpoints of a run, if the folder is that of a run."""
    inside = sorted({path.parent.parent for path in folder.path.glob(f"*/*/{store.MANIFEST}")})
    return f" There are some in {', '.join(map(str, inside))}." if inside else ""


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())
