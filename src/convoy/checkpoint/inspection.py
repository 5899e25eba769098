"""Inspection of checkpoints: lists, descriptions and verification, as lines of text."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convoy.checkpoint import store
from convoy.checkpoint.callback import Checkpoints, parse_best
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.folder import Folder, Position, find_checkpoint
from convoy.checkpoint.store import Checkpoint
from convoy.types import Json
from convoy.units import format_bytes, format_table


def find(path: Path) -> tuple[Path, Checkpoint]:
    """Read a checkpoint, or the newest intact one of a folder.

    Raises:
        CheckpointError: if there is none.
    """
    found = find_checkpoint(path)
    if found is None:
        raise _not_found(Folder(path))
    return found


def find_all(path: Path) -> list[Path]:
    """Return the checkpoints of a folder, or the path itself if it is a checkpoint.

    Raises:
        CheckpointError: if there is none.
    """
    folder = Folder(path)
    paths = [folder.at(position) for position in folder.positions()] or [path]
    if paths == [path] and not path.is_dir():
        raise _not_found(folder)
    return paths


def list_lines(path: Path) -> Iterator[str]:
    """Yield a line for each checkpoint of a folder, oldest first.

    Raises:
        CheckpointError: if there is none.
    """
    folder = Folder(path)
    positions = folder.positions()
    if not positions and not path.exists():
        raise _not_found(folder)
    if not positions:
        raise CheckpointError(f"{path} has no checkpoints. Pass another folder.{_hint(folder)}")
    lines: dict[Position, str] = {}
    best = None
    for position in positions:
        checkpoint = folder.at(position)
        try:
            manifest = store.read_manifest(checkpoint)
        except CheckpointError as error:
            lines[position] = f"{position.name}  {error}"
            continue
        best = _best_position(manifest.state)
        logs = manifest.state.get("logs", {})
        values = "  ".join(f"{name} {_format(value, 4)}" for name, value in logs.items())
        written = manifest.about.get("written", "")
        line = f"{position.name}  {format_bytes(_size(checkpoint)):>9}  {written}  {values}"
        lines[position] = line.rstrip()
    for position, line in lines.items():
        yield f"{line}  (best)" if position == best else line


def _best_position(state: Json) -> Position | None:
    """Return the best checkpoint at the time when another one was written, if it was tracked."""
    for callback in state.get("callbacks", []):
        if callback["type"] == Checkpoints.__name__:
            with contextlib.suppress(CheckpointError):
                best = parse_best(callback["state"])
                return None if best is None else best[1]
    return None


def _format(value: Any, digits: int) -> str:
    return f"{value:.{digits}g}" if isinstance(value, int | float) else str(value)


def describe_lines(path: Path, with_hash: bool) -> Iterator[str]:
    """Yield the description of a checkpoint, or of the newest one of a folder.

    Args:
        path: the checkpoint or the folder.
        with_hash: whether the last line is a hash of the whole state.
    """
    path, checkpoint = find(path)
    manifest = store.read_manifest(path)
    state, about = checkpoint.state, checkpoint.about
    rows = [("checkpoint", str(path)), ("size", format_bytes(_size(path)))]
    if not state.get("weights_only"):
        rows += [
            ("epochs done", str(state.get("epoch", 0))),
            ("steps of the next", str(state.get("step", 0))),
            ("steps in all", str(state.get("total", 0))),
        ]
    rows += [(name, _format(value, 6)) for name, value in state.get("logs", {}).items()]
    versions = about.get("versions", {})
    rows += [("written", about["written"])] if "written" in about else []
    rows += [("versions", ", ".join(f"{name} {number}" for name, number in versions.items()))]
    rows += [("recipe", str(about["recipe"]))] if about.get("recipe") else []
    yield from format_table(rows)
    for name, entry in manifest.arrays.items():
        shape = "x".join(map(str, entry.shape)) or "scalar"
        yield f"  {entry.dtype:<5} {shape:<16} {name}"
    if with_hash:
        yield store.state_hash(manifest)


def verify(path: Path) -> CheckpointError | None:
    """Verify all checksums of a checkpoint, and return the error if one is wrong."""
    try:
        store.read(path)
    except CheckpointError as error:
        return error
    return None


def _not_found(folder: Folder) -> CheckpointError:
    if not folder.path.exists():
        return CheckpointError(f"There is no folder {folder.path}. Pass one that exists.")
    return CheckpointError(
        f"{folder.path} is neither a checkpoint nor a folder of checkpoints. Pass one of these."
        f"{_hint(folder)}"
    )


def _hint(folder: Folder) -> str:
    """Return a hint at the checkpoints in subfolders, such as those of a run."""
    inside = sorted({path.parent.parent for path in folder.path.glob(f"*/*/{store.MANIFEST}")})
    return f" There are some in {', '.join(map(str, inside))}." if inside else ""


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())
