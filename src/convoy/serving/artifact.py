"""The artifact of one version of a model on disk: programs, weights, signature and an example.

    D/1/manifest.json         signature, class names, batch sizes, checksums
    D/1/program-8.stablehlo   the forward pass of 8 samples, from `jax.export`
    D/1/weights.safetensors   the arguments of the programs before the inputs
    D/1/example.safetensors   one sample, and the model's outputs for it
    D/1/model.keras           the Keras model, if it can be saved

The folder is written under a temporary name and then renamed, so a server never sees a part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from convoy.atomic_file import write_synced
from convoy.checkpoint import tensors
from convoy.checkpoint.errors import DamagedError
from convoy.serving.errors import ArtifactError
from convoy.serving.signature import Arrays, Signature

FORMAT = "convoy-model"
VERSION = 1

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
EXAMPLE = "example.safetensors"
MODEL = "model.keras"
UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class Program:
    """A forward pass at one batch size.

    Attributes:
        code: the program, serialised by `jax.export`.
        weights: names of the arguments before the inputs.
    """

    code: bytes
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Artifact:
    """The content of one version of a model.

    Attributes:
        signature: the inputs and outputs.
        programs: the programs by batch size.
        weights: the weights by name.
        example: the inputs and outputs of one sample; the outputs' names begin with `=`.
        class_names: the names of the classes, for a classifier.
        about: further information, such as package versions.
        path: the folder, for an artifact that was read.
    """

    signature: Signature
    programs: Mapping[int, Program]
    weights: Mapping[str, np.ndarray]
    example: Arrays
    class_names: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.programs))

    @property
    def keras_file(self) -> Path | None:
        """The saved Keras model, if there is one."""
        file = None if self.path is None else self.path / MODEL
        return file if file is not None and file.exists() else None


def versions_in(base: Path) -> list[int]:
    """Return the versions in a model's folder, oldest first."""
    if not base.is_dir():
        return []
    names = [entry.name for entry in base.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return sorted({int(name) for name in names})


def folder_of(base: Path, version: int) -> Path:
    """Return the folder of a version; its name may have leading zeros, such as `00000123`."""
    plain = base / str(version)
    if plain.is_dir() or not base.is_dir():
        return plain
    same = [e for e in base.iterdir() if e.name.isdecimal() and int(e.name) == version]
    return same[0] if same else plain


def write(base: Path, artifact: Artifact, version: int | None, saved: Path | None) -> Path:
    """Add a version to a model's folder.

    Args:
        base: the model's folder; it is created if needed.
        artifact: the content.
        version: the version number; by default the newest plus one.
        saved: the saved Keras model, on the same disk; the file is moved.

    Returns:
        The version's folder.

    Raises:
        ArtifactError: if writing fails; no part of the version remains.
    """

    def fill(folder: Path) -> None:
        manifest = _write_content(folder, artifact, saved)
        write_synced(folder / MANIFEST, json.dumps(manifest, indent=1).encode())

    return add_version(base, version, fill)


def add_version(base: Path, version: int | None, fill: Callable[[Path], None]) -> Path:
    """Add a version whose files a function writes; the folder appears when they are complete.

    Raises:
        ArtifactError: if writing fails; no part of the version remains.
    """
    unfinished = base / f"{UNFINISHED}{os.getpid()}"
    try:
        unfinished.mkdir(parents=True)
        fill(unfinished)
        return _rename(unfinished, base, version)
    except OSError as error:
        raise ArtifactError(
            f"{base} could not be written: {error.strerror or error}. Pass another folder."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read(path: Path) -> Artifact:
    """Read a version, and verify all its checksums.

    Raises:
        ArtifactError: if the folder is not an artifact, or is damaged.
    """
    manifest = read_manifest(path)
    try:
        weights, example = (
            dict(tensors.read(path / name, manifest["arrays"][name])) for name in (WEIGHTS, EXAMPLE)
        )
        for name, checksum in manifest["files"].items():
            if _checksum(path / name) != checksum:
                raise ArtifactError(f"{path / name} is damaged: its checksum is wrong.")
        programs = {
            int(size): Program((path / entry["file"]).read_bytes(), tuple(entry["weights"]))
            for size, entry in manifest["programs"].items()
        }
        return Artifact(
            Signature.from_json(manifest["signature"]),
            programs,
            weights,
            example,
            tuple(manifest["class_names"]),
            manifest["about"],
            path,
        )
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error
    except DamagedError as error:
        raise ArtifactError(str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path / MANIFEST} is damaged: {error}") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the content of a version's manifest.

    Raises:
        ArtifactError: if there is no manifest, or its format is newer.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        found = manifest["format"], manifest["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path} is not a model that convoy export wrote: {MANIFEST} is missing or damaged."
        ) from error
    if found[0] != FORMAT or found[1] > VERSION:
        raise ArtifactError(
            f"{path} has the format {found[0]}, version {found[1]}; this Convoy reads {FORMAT} up "
            f"to version {VERSION}. Use a newer Convoy."
        )
    return manifest


def _write_content(folder: Path, artifact: Artifact, saved: Path | None) -> dict[str, Any]:
    arrays = {
        WEIGHTS: tensors.write(folder / WEIGHTS, artifact.weights),
        EXAMPLE: tensors.write(folder / EXAMPLE, artifact.example),
    }
    files, programs = {}, {}
    for size, program in sorted(artifact.programs.items()):
        name = f"program-{size}.stablehlo"
        write_synced(folder / name, program.code)
        files[name] = hashlib.sha256(program.code).hexdigest()
        programs[str(size)] = {"file": name, "weights": list(program.weights)}
    if saved is not None:
        saved.rename(folder / MODEL)
        files[MODEL] = _checksum(folder / MODEL)
    return {
        "format": FORMAT,
        "version": VERSION,
        "signature": artifact.signature.to_json(),
        "class_names": list(artifact.class_names),
        "programs": programs,
        "files": files,
        "arrays": arrays,
        "about": dict(artifact.about),
    }


def _rename(unfinished: Path, base: Path, version: int | None) -> Path:
    if version is not None:
        path = base / str(version)
        if path.exists():
            raise ArtifactError(f"{path} already exists. Pass another version, or remove it.")
        return unfinished.rename(path)
    number = max(versions_in(base), default=0) + 1
    while (base / str(number)).exists():  # Another export has just written it.
        number += 1
    return unfinished.rename(base / str(number))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def distinct(arrays: Sequence[np.ndarray], into: dict[str, np.ndarray]) -> tuple[str, ...]:
    """Add arrays to a dictionary, equal ones once, and return their names in it."""
    names = tuple(content_name(array) for array in arrays)
    for name, array in zip(names, arrays, strict=True):
        into.setdefault(name, array)
    return names


def content_name(array: np.ndarray) -> str:
    """Return a name that only equal arrays share."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return f"{array.dtype}{list(array.shape)}-{hashlib.sha256(data).hexdigest()[:32]}"
