"""One checkpoint on disk: a folder with a manifest, the arrays, and the model's configuration.

The folder is written under a temporary name, synced to the disk, and renamed, so a reader never
sees a part of it. The manifest has a checksum of every array and file, and one of itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from convoy.atomic_file import rename_synced, unfinished_folder, write_synced
from convoy.checkpoint import tensors
from convoy.checkpoint.errors import CheckpointError, DamagedError
from convoy.types import Json

FORMAT = "convoy-checkpoint"
VERSION = 1

MANIFEST = "manifest.json"
ARRAYS = "arrays.safetensors"
MODEL = "model.json"


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
            files = {}
            if checkpoint.model is not None:
                data = checkpoint.model.encode()
                write_synced(unfinished / MODEL, data)
                files[MODEL] = hashlib.sha256(data).hexdigest()
            body = {
                "format": FORMAT,
                "version": VERSION,
                "name": path.name,
                "about": checkpoint.about,
                "state": checkpoint.state,
                "arrays": _with_checksums(checkpoint.arrays, checksums),
                "header": checksums[""],
                "files": files,
            }
            # The checksum is of what a reader finds: JSON has no tuples, and only string keys.
            body = json.loads(json.dumps(body))
            write_synced(unfinished / MANIFEST, _dump({"body": body, "sha256": _checksum(body)}))
            rename_synced(unfinished, path)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error.strerror or error}. Earlier checkpoints are "
            "intact. Free some space, or pass another folder."
        ) from error


def read_manifest(path: Path) -> Json:
    """Read a checkpoint's manifest, and verify its checksum.

    Raises:
        DamagedError: if it differs from what was written.
        CheckpointError: if its format is newer.
    """
    file = path / MANIFEST
    try:
        data = file.read_bytes()
        manifest = json.loads(data)
        body, checksum = manifest["body"], manifest["sha256"]
    except OSError as error:
        raise DamagedError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{file} is damaged: it is not a manifest.") from error
    if _dump(manifest) != data or _checksum(body) != checksum:
        raise DamagedError(f"{file} is damaged: its checksum is wrong.")
    if body["format"] != FORMAT or body["version"] > VERSION:
        raise CheckpointError(
            f"{path} has the format {body['format']}, version {body['version']}; this Convoy reads "
            f"{FORMAT} up to version {VERSION}. Use a newer Convoy."
        )
    if body["name"] != path.name:
        raise DamagedError(f"{path} was written as {body['name']!r} and has been renamed.")
    return body


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, and verify all its checksums.

    Raises:
        DamagedError: if it differs from what was written.
    """
    body = read_manifest(path)
    checksums = {name: entry["sha256"] for name, entry in body["arrays"].items()}
    arrays = dict(tensors.read(path / ARRAYS, {"": body["header"], **checksums}))
    texts = {name: _read_file(path / name, checksum) for name, checksum in body["files"].items()}
    return Checkpoint(arrays, body["state"], body["about"], texts.get(MODEL))


def state_hash(manifest: Json) -> str:
    """Return a hash of the whole state; equal hashes mean bit-identical states."""
    return _checksum({"arrays": manifest["arrays"], "state": manifest["state"]})


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


def _read_file(path: Path, checksum: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}.") from error
    if hashlib.sha256(data).hexdigest() != checksum:
        raise DamagedError(f"{path} is damaged: its checksum is wrong.")
    return data.decode()
