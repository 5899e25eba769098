"""One checkpoint on disk: a folder with a manifest, the arrays, and the model's description.

It is written under another name, brought to the disk, and renamed: a reader sees all of it or none.
Every byte of it is covered by a checksum, and the manifest by its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from convoy.checkpoint import tensors
from convoy.checkpoint.errors import CheckpointError, DamagedError

FORMAT = "convoy-checkpoint"
VERSION = 1

MANIFEST = "manifest.json"
ARRAYS = "arrays.safetensors"
MODEL = "model.json"

UNFINISHED = ".unfinished-"
Json = dict[str, Any]


@dataclass(frozen=True)
class Content:
    """What is in a checkpoint.

    Attributes:
        arrays: values by name, on the host.
        state: all else that a run needs to go on, as JSON can hold it.
        about: what is good to know of it, such as versions; not part of the state.
        model: the model's description by Keras, if it has one.
    """

    arrays: Mapping[str, np.ndarray]
    state: Json
    about: Json
    model: str | None = None


def write(path: Path, content: Content) -> None:
    """Write a checkpoint to a folder that does not exist yet.

    Raises:
        CheckpointError: if that fails. Nothing is left behind then.
    """
    unfinished = path.parent / f"{UNFINISHED}{path.name}-{os.getpid()}"
    try:
        unfinished.mkdir()
        checksums = tensors.write(unfinished / ARRAYS, content.arrays)
        files = {}
        if content.model is not None:
            data = content.model.encode()
            _write_file(unfinished / MODEL, data)
            files[MODEL] = hashlib.sha256(data).hexdigest()
        body = {
            "format": FORMAT,
            "version": VERSION,
            "name": path.name,
            "about": content.about,
            "state": content.state,
            "arrays": _with_checksums(content.arrays, checksums),
            "header": checksums[""],
            "files": files,
        }
        # What a reader will find: JSON has no tuples, and no keys but strings.
        body = json.loads(json.dumps(body))
        _write_file(unfinished / MANIFEST, _dump({"body": body, "sha256": _checksum(body)}))
        _sync_folder(unfinished)
        unfinished.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            f"{path} could not be written: {error.strerror or error}. Earlier checkpoints are as "
            "they were. Make room, or pass another folder."
        ) from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def read_manifest(path: Path) -> Json:
    """Return what a checkpoint's manifest says, after a look at its checksum.

    Raises:
        DamagedError: if it is not what was written.
        CheckpointError: if it is of a newer version.
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
        raise DamagedError(f"{file} is damaged: it is not what was written.")
    if body["format"] != FORMAT or body["version"] > VERSION:
        raise CheckpointError(
            f"{path} is a {body['format']} of version {body['version']}; this Convoy reads up to "
            f"{VERSION}. Use a newer one."
        )
    if body["name"] != path.name:
        raise DamagedError(f"{path} was written as {body['name']!r}, and has been renamed.")
    return body


def read(path: Path) -> Content:
    """Read a checkpoint, after a look at every checksum in it.

    Raises:
        DamagedError: if it is not what was written.
    """
    body = read_manifest(path)
    checksums = {name: entry["sha256"] for name, entry in body["arrays"].items()}
    arrays = dict(tensors.read(path / ARRAYS, {"": body["header"], **checksums}))
    texts = {name: _read_file(path / name, checksum) for name, checksum in body["files"].items()}
    return Content(arrays, body["state"], body["about"], texts.get(MODEL))


def verify(path: Path) -> None:
    """Look at every checksum of a checkpoint.

    Raises:
        DamagedError: if it is not what was written.
    """
    read(path)


def state_hash(manifest: Json) -> str:
    """Return one hash over the whole state: equal if and only if every bit of it is."""
    return _checksum({"arrays": manifest["arrays"], "state": manifest["state"]})


def array_entries(manifest: Json) -> dict[str, Json]:
    """Return type, shape and checksum of every array, by name."""
    return manifest["arrays"]


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


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_file(path: Path, checksum: str) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}.") from error
    if hashlib.sha256(data).hexdigest() != checksum:
        raise DamagedError(f"{path} is damaged: it is not what was written.")
    return data.decode()


def _sync_folder(path: Path) -> None:
    """Bring a folder's entries to the disk: after that a rename outlives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
