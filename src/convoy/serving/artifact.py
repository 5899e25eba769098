"""The artifact of one version of a model on disk: programs, weights, signature and an example.

    D/1/manifest.json         signature, class names, batch sizes, checksums, one of itself
    D/1/program-8.stablehlo   the forward pass of 8 samples, from `jax.export`
    D/1/weights.safetensors   the arguments of the programs before the inputs
    D/1/example.safetensors   one sample, and the model's outputs for it
    D/1/model.keras           the Keras model, if it can be saved

The folder is written under a temporary name and then renamed, so a server never sees an incomplete
version.
"""

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
from convoy.atomic_file import rename_synced, unfinished_folder, write_synced
from convoy.checkpoint import files, tensors
from convoy.checkpoint.errors import DamagedError
from convoy.error_messages import system_reason
from convoy.serving.accuracy import ExportedPrecision
from convoy.serving.errors import ArtifactError, describe_error
from convoy.serving.signature import Arrays, Signature
from convoy.types import Json

FORMAT = "convoy-model"
# Version 2 has a checksum of the manifest.
VERSION = 2

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
EXAMPLE = "example.safetensors"
MODEL = "model.keras"
CHECKSUM = "sha256"
MAX_BATCH_SIZE = 1 << 16
# The protocols have signed numbers of 64 bits.
MAX_VERSION = 2**63 - 1
# Manifests are far smaller.
_MAX_MANIFEST_BYTES = 64 << 20


class UnreadableError(ArtifactError):
    """A version cannot be read now, which does not show that it is damaged."""


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
        precision: the precision; `None` in artifacts of versions that did not write it.
        path: the folder, for an artifact that was read.
        keras_file: the saved Keras model, if the artifact was read and contains one.
    """

    signature: Signature
    programs: Mapping[int, Program]
    weights: Mapping[str, np.ndarray]
    example: Arrays
    class_names: tuple[str, ...] = ()
    about: Json = field(default_factory=dict)
    precision: ExportedPrecision | None = None
    path: Path | None = None
    keras_file: Path | None = None

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.programs))


def versions_in(base: Path) -> dict[int, Path]:
    """Return the folders of a model's versions, oldest first.

    Their names may have leading zeros, such as `00000123`. Folders with other names, and with
    numbers that the protocols cannot send, are not versions.
    """
    if not base.is_dir():
        return {}
    folders = [entry for entry in base.iterdir() if _is_version(entry.name) and entry.is_dir()]
    # If a version has several names, the one without leading zeros comes last and is used.
    ordered = sorted(folders, key=lambda folder: (int(folder.name), folder.name))
    return {int(folder.name): folder for folder in ordered}


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdecimal() and int(name) <= MAX_VERSION


def add_version(base: Path, version: int | None, fill: Callable[[Path], None]) -> Path:
    """Add a version to a model's folder; it appears when all its files are complete.

    Args:
        base: the model's folder; it is created if needed.
        version: the version number; by default the newest plus one.
        fill: function that writes the files to a folder.

    Returns:
        The version's folder.

    Raises:
        ArtifactError: if the version exists, or writing fails; no part of the version remains.
    """
    if version is not None and not 0 <= version <= MAX_VERSION:
        raise ArtifactError(f"version={version} is not from 0 to {MAX_VERSION}. Pass another.")
    try:
        with unfinished_folder(base) as unfinished:
            fill(unfinished)
            number = max(versions_in(base), default=0) + 1 if version is None else version
            path = base / str(number)
            if path.exists():
                raise ArtifactError(f"{path} already exists. Pass another version, or remove it.")
            rename_synced(unfinished, path)
            return path
    except OSError as error:
        raise ArtifactError(
            f"{base} could not be written: {system_reason(error)}. Pass another folder."
        ) from error


def write(artifact: Artifact, model: keras.Model | None, folder: Path) -> None:
    """Write the files of a version to a folder.

    Args:
        artifact: the content.
        model: the Keras model, if there is one; it is left out if it cannot be saved.
        folder: the folder.
    """
    arrays = {
        WEIGHTS: tensors.write(folder / WEIGHTS, artifact.weights),
        EXAMPLE: tensors.write(folder / EXAMPLE, artifact.example),
    }
    programs: dict[str, Json] = {}
    for size, program in sorted(artifact.programs.items()):
        name = f"program-{size}.stablehlo"
        write_synced(folder / name, program.code)
        programs[str(size)] = {"file": name, "weights": list(program.weights)}
    files = [program["file"] for program in programs.values()]
    if model is not None and _save(model, folder / MODEL):
        files.append(MODEL)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "signature": artifact.signature.to_json(),
        "class_names": list(artifact.class_names),
        "programs": programs,
        "files": {name: _checksum(folder / name) for name in files},
        "arrays": arrays,
        "about": artifact.about,
    }
    if artifact.precision is not None:
        manifest["precision"] = artifact.precision.to_json()
    manifest[CHECKSUM] = _manifest_checksum(manifest)
    write_synced(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def _save(model: keras.Model, path: Path) -> bool:
    try:
        model.save(path)
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        # A layer has no get_config(); the programs do not need the Keras model.
        path.unlink(missing_ok=True)
        return False
    return True


def read(path: Path) -> Artifact:
    """Read a version, and verify all its checksums.

    Raises:
        ArtifactError: if the folder is not an artifact, has a newer format, or is damaged;
            `UnreadableError` if it cannot be read for a reason that may pass.
    """
    try:
        manifest = _read_manifest(path)
        for name in (WEIGHTS, EXAMPLE, *manifest["files"]):
            _check_file(path, name)
        weights, example = (
            dict(tensors.read(path / name, manifest["arrays"][name])) for name in (WEIGHTS, EXAMPLE)
        )
        for name, checksum in manifest["files"].items():
            _compare(path / name, _checksum(path / name), checksum)
        programs = {
            int(size): _read_program(path, entry, manifest["files"])
            for size, entry in manifest["programs"].items()
        }
        signature = Signature.from_json(manifest["signature"])
        class_names, about = tuple(manifest["class_names"]), manifest["about"]
        entry = manifest.get("precision")
        precision = None if entry is None else ExportedPrecision.from_json(entry)
        if not programs or not all(1 <= size <= MAX_BATCH_SIZE for size in programs):
            raise ArtifactError(
                f"{path} has programs for the batch sizes {sorted(programs)}; expected one or "
                f"more, each from 1 to {MAX_BATCH_SIZE}. Export the model again."
            )
        # A file without a checksum may have been added by anyone, or be a pipe.
        keras_file = path / MODEL if MODEL in manifest["files"] else None
        return Artifact(
            signature,
            programs,
            weights,
            example,
            class_names,
            about,
            precision,
            path,
            keras_file,
        )
    except OSError as error:
        raise UnreadableError(
            f"{path} cannot be read: {system_reason(error)}. This does not show that it is "
            "damaged. Check its permissions and the disk, and try again."
        ) from error
    except DamagedError as error:
        raise ArtifactError(str(error)) from error
    except ArtifactError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{path / MANIFEST} is damaged: {describe_error(error).rstrip('.')}. Export the model "
            "again."
        ) from error


def _check_file(path: Path, name: str) -> None:
    """Check that a name refers to a regular file in the version's folder.

    The folder itself, and names in it, may be links, as those of Kubernetes volumes are. A link to
    a file outside would give the version's author access to files that only the server can read,
    and reading from a pipe or a device may never end.

    Raises:
        DamagedError: if it does not, or there is no such file.
        ArtifactError: if it is outside.
        OSError: if that cannot be determined now.
    """
    if Path(name).name != name or name in ("", ".", ".."):
        raise ArtifactError(
            f"{path / MANIFEST} is damaged: {name!r} is not the name of a file. Export the model "
            "again."
        )
    try:
        folder, file = (Path(os.path.realpath(found, strict=True)) for found in (path, path / name))
        mode = file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError(
            f"{path / name} cannot be read: {system_reason(error)}. Copy it again, or export the "
            "model again."
        ) from error
    if not file.is_relative_to(folder):
        raise ArtifactError(
            f"{path / name} is a link to {file}, which is not in {folder}. Put a copy of the file "
            "in its place."
        )
    if not stat.S_ISREG(mode):
        raise DamagedError(f"{path / name} is not a file. Export the model again.")


def _read_program(path: Path, entry: Json, checked: Json) -> Program:
    if entry["file"] not in checked:
        raise ArtifactError(
            f"{path / MANIFEST} is damaged: {entry['file']!r} has no checksum. Export the model "
            "again."
        )
    with files.open_file(path / entry["file"]) as file:
        return Program(file.read(), tuple(entry["weights"]))


def _read_manifest(path: Path) -> Json:
    try:
        _check_file(path, MANIFEST)
        manifest = json.loads(files.read_file(path / MANIFEST, _MAX_MANIFEST_BYTES))
        found = manifest["format"], manifest["version"]
    except ArtifactError:
        raise
    except (DamagedError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"{path} is not a model that convoy export wrote: {MANIFEST} is missing or damaged. "
            "Export a model there."
        ) from error
    if found[0] != FORMAT or found[1] not in range(1, VERSION + 1):
        raise ArtifactError(
            f"{path} has the format {found[0]}, version {found[1]}; this Convoy reads {FORMAT} up "
            f"to version {VERSION}. Use a newer Convoy."
        )
    if found[1] >= 2:
        expected = manifest.pop(CHECKSUM, None)
        _compare(path / MANIFEST, _manifest_checksum(manifest), expected)
    return manifest


def _compare(path: Path, checksum: str, expected: object) -> None:
    if checksum != expected:
        raise ArtifactError(
            f"{path} is damaged: its checksum is wrong. Copy it again, or export the model again."
        )


def _manifest_checksum(manifest: Json) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


Fingerprint = tuple[tuple[str, int, int, int], ...]


def fingerprint(path: Path) -> Fingerprint:
    """Return names, sizes, times and inodes of a version's files, to detect changes."""
    found = []
    with contextlib.suppress(OSError):  # A file may disappear meanwhile.
        for entry in os.scandir(path):
            status = entry.stat(follow_symlinks=True)
            found.append((entry.name, status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(sorted(found))


def _checksum(path: Path) -> str:
    with files.open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_name(array: np.ndarray) -> str:
    """Return a name that is the same only for equal arrays."""
    checksum = hashlib.sha256(tensors.as_bytes(array)).hexdigest()
    return f"{array.dtype}{list(array.shape)}-{checksum[:32]}"
