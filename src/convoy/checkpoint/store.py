"""One checkpoint on disk: a folder with a manifest, the arrays, and the model's configuration.

The folder is written under a temporary name, synced to the disk, and renamed, so a reader never
sees a part of it. The manifest has a checksum of every array and file, and one of itself.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from convoy.atomic_file import rename_synced, unfinished_folder, write_synced
from convoy.checkpoint import files, tensors
from convoy.checkpoint.errors import CheckpointError, DamagedError
from convoy.checkpoint.manifest import FORMAT, MODEL, VERSION, ArrayEntry, Manifest, parse
from convoy.error_messages import system_reason
from convoy.types import Json

MANIFEST = "manifest.json"
ARRAYS = "arrays.safetensors"
# Manifests and configurations are far smaller; a file of another kind would fill the memory.
_MAX_TEXT_BYTES = 256 << 20


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        arrays: host arrays by name.
        state: everything else that a run needs to resume, as JSON.
        about: further information that is not part of the state, such as package versions.
        model: the model's configuration in Keras's JSON format, if it has one.
    """

    arrays: Mapping[str, np.ndarray]
    state: Json
    about: Json
    model: str | None = None


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to a folder that does not exist yet.

    Raises:
        CheckpointError: if writing fails; no part of the checkpoint remains.
    """
    try:
        with unfinished_folder(path.parent) as unfinished:
            checksums = tensors.write(unfinished / ARRAYS, checkpoint.arrays)
            texts = {}
            if checkpoint.model is not None:
                data = checkpoint.model.encode()
                write_synced(unfinished / MODEL, data)
                texts[MODEL] = hashlib.sha256(data).hexdigest()
            body = {
                "format": FORMAT,
                "version": VERSION,
                "name": path.name,
                "about": checkpoint.about,
                "state": checkpoint.state,
                "arrays": _with_checksums(checkpoint.arrays, checksums),
                "header": checksums[""],
                "files": texts,
            }
            # The checksum is of what a reader finds: JSON has no tuples, and only string keys.
            body = json.loads(json.dumps(body))
            write_synced(unfinished / MANIFEST, _dump({"body": body, "sha256": _checksum(body)}))
            rename_synced(unfinished, path)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {system_reason(error)}. Earlier checkpoints are "
            "intact. Free some space, or pass another folder."
        ) from error


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest, and verify its checksum and its fields.

    Raises:
        DamagedError: if it differs from what was written.
        CheckpointError: if its format is newer, or it cannot be read now.
    """
    file = path / MANIFEST
    with files.errors_that_may_pass(file):
        data = files.read_file(file, _MAX_TEXT_BYTES)
    try:
        manifest = json.loads(data)
        body, checksum = manifest["body"], manifest["sha256"]
        is_intact = _dump(manifest) == data and _checksum(body) == checksum
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{file} is damaged: it is not a manifest.") from error
    if not is_intact:
        raise DamagedError(f"{file} is damaged: its checksum is wrong.")
    _check_format(path, body)
    try:
        parsed = parse(body)
    except DamagedError as error:
        raise DamagedError(f"{file} is not a manifest of Convoy: {error}.") from None
    if parsed.name != path.name:
        raise DamagedError(
            f"{path} was written as {parsed.name!r} and has been renamed. Restore this name."
        )
    return parsed


def _check_format(path: Path, body: Any) -> None:
    """Reject formats that are newer; their fields may be others."""
    name, version = (body.get(k) if isinstance(body, dict) else None for k in ("format", "version"))
    if name == FORMAT and not (isinstance(version, int) and version > VERSION):
        return
    if isinstance(name, str) and isinstance(version, int):
        raise CheckpointError(
            f"{path} has the format {name}, version {version}; this Convoy reads {FORMAT} up to "
            f"version {VERSION}. Use a newer Convoy."
        )
    raise DamagedError(f"{path / MANIFEST} is damaged: it has no format and version.")


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, and verify all its checksums.

    Raises:
        DamagedError: if it differs from what was written.
        CheckpointError: if its format is newer, or it cannot be read now.
    """
    manifest = read_manifest(path)
    checksums = {name: entry.sha256 for name, entry in manifest.arrays.items()}
    with files.errors_that_may_pass(path):
        arrays = dict(tensors.read(path / ARRAYS, {"": manifest.header, **checksums}))
        model = _read_model(path, manifest.files.get("model.json"))
    if _with_checksums(arrays, checksums) != _dumped(manifest.arrays):
        raise DamagedError(f"{path} has arrays of other types or shapes than its manifest lists.")
    return Checkpoint(arrays, manifest.state, manifest.about, model)


def state_hash(manifest: Manifest) -> str:
    """Return a hash of the whole state; equal hashes mean bit-identical states."""
    return _checksum({"arrays": _dumped(manifest.arrays), "state": manifest.state})


def _dumped(entries: Mapping[str, ArrayEntry]) -> dict[str, Json]:
    return {name: entry.model_dump() for name, entry in entries.items()}


def _with_checksums(arrays: tensors.Arrays, checksums: Mapping[str, str]) -> dict[str, Json]:
    return {
        name: {"dtype": entry["dtype"], "shape": entry["shape"], "sha256": checksums[name]}
        for name, entry in tensors.describe(arrays).items()
    }


def _dump(manifest: Json) -> bytes:
    return json.dumps(manifest, indent=1).encode()


def _checksum(body: Any) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read_model(path: Path, checksum: str | None) -> str | None:
    """Return the model's configuration, if the checkpoint has one."""
    if checksum is None:
        return None
    data = files.read_file(path / MODEL, _MAX_TEXT_BYTES)
    if hashlib.sha256(data).hexdigest() != checksum:
        raise DamagedError(f"{path / MODEL} is damaged: its checksum is wrong.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path / MODEL} is damaged: it is not text.") from error
