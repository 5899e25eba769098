"""Volumes and their targets: in record files of the CosmoFlow dataset, or random.

A record is a `tf.train.Example` with two features: `x`, the bytes of 16-bit integers, and `y`,
floats.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from convoy.data import examples, records
from convoy.data.records import DamagedDataError

ENDINGS = (".tfrecord", ".tfrecord.gz")
STORED = np.dtype("<i2")
_VOLUME, _TARGETS = "x", "y"


class Volumes(Protocol):
    """Volumes that can be read in any order, in any process."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a volume, with its channels."""
        ...

    @property
    def target_size(self) -> int: ...

    def __len__(self) -> int: ...

    def read(self, index: int, out: np.ndarray) -> np.ndarray:
        """Write a volume to a float32 array and return its targets.

        Raises:
            DamagedDataError: if the data is damaged; the message names the file.
        """
        ...

    def targets(self, indices: Sequence[int]) -> np.ndarray:
        """Return the targets of some volumes."""
        ...


def encode(volume: np.ndarray, targets: Sequence[float]) -> bytes:
    """Return a record with a volume and its targets."""
    stored = np.ascontiguousarray(volume, STORED)
    return examples.encode(
        {_VOLUME: [stored.tobytes()], _TARGETS: [float(target) for target in targets]}
    )


def decode(data: bytes, shape: tuple[int, ...], target_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the volume and the targets of a record.

    Raises:
        DamagedDataError: if one of them is missing, or has another size.
    """
    found = examples.decode(data, (_VOLUME, _TARGETS))
    volume = found.get(_VOLUME, [])
    if len(volume) != 1 or not isinstance(volume[0], bytes):
        raise DamagedDataError(f"it has no volume: no feature {_VOLUME!r} of bytes")
    expected = math.prod(shape) * STORED.itemsize
    if len(volume[0]) != expected:
        raise DamagedDataError(
            f"its volume has {len(volume[0]):,} bytes, but shape {list(shape)} needs {expected:,}. "
            "Set data.sample_shape to the shape of the files"
        )
    targets = found.get(_TARGETS, [])
    if len(targets) != target_size or not all(isinstance(value, float) for value in targets):
        raise DamagedDataError(
            f"it has {len(targets)} targets instead of {target_size}. Set data.target_shape to "
            "that of the files"
        )
    return np.frombuffer(volume[0], STORED).reshape(shape), np.array(targets, np.float32)


@dataclass(frozen=True)
class VolumeFiles:
    """Volumes in record files.

    Attributes:
        files: paths of files with an equal number of records.
        shape: shape of a volume, with its channels.
        target_size: number of targets of a volume.
        samples_per_file: number of records in a file.
        apply_log: whether volumes are `log(x + 1)`, else `x` divided by its mean.
        subtract_mean: whether the mean of a volume is then subtracted.
    """

    files: tuple[Path, ...]
    shape: tuple[int, ...]
    target_size: int
    samples_per_file: int = 1
    apply_log: bool = False
    subtract_mean: bool = False
    # The records of the last file: the samples of a file are read one after the other.
    _last: dict[int, list[bytes]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.files) * self.samples_per_file

    @property
    def stored_bytes(self) -> int:
        """Size of all files on disk."""
        return sum(path.stat().st_size for path in self.files)

    def read(self, index: int, out: np.ndarray) -> np.ndarray:
        file, number = divmod(index, self.samples_per_file)
        data = self._records(file)[number]
        try:
            volume, targets = decode(data, self.shape, self.target_size)
        except DamagedDataError as error:
            raise DamagedDataError(f"{self.files[file]}, record {number}: {error}.") from None
        normalise(volume, out, apply_log=self.apply_log)
        if self.subtract_mean:
            out -= out.mean(dtype=np.float64)
        return targets

    def targets(self, indices: Sequence[int]) -> np.ndarray:
        out = np.empty(self.shape, np.float32)
        return np.stack([self.read(index, out) for index in indices])

    def _records(self, file: int) -> list[bytes]:
        if file not in self._last:
            path = self.files[file]
            try:
                found = list(records.read_all(path))
            except OSError as error:
                raise DamagedDataError(
                    f"{path} cannot be read: {error.strerror}. Copy the file again."
                ) from None
            if len(found) != self.samples_per_file:
                raise DamagedDataError(
                    f"{path} has {len(found)} records, but data.samples_per_file is "
                    f"{self.samples_per_file}. Set it to the number of records in each file."
                )
            self._last.clear()
            self._last[file] = found
        return self._last[file]

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_last": {}}


def find_volumes(
    folder: Path,
    samples: int,
    shape: tuple[int, ...],
    target_size: int,
    *,
    samples_per_file: int = 1,
    apply_log: bool = False,
    subtract_mean: bool = False,
) -> VolumeFiles:
    """Return the first volumes in a folder, in the order of file names.

    Reads the first file, so that files of another shape are detected before anything is compiled.

    Raises:
        ValueError: if there are too few.
        DamagedDataError: if the first file is damaged or has another shape.
    """
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}. Set data.data_dir to its parent.")
    found = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(ENDINGS))
    needed, remainder = divmod(samples, samples_per_file)
    if remainder:
        raise ValueError(
            f"{samples} samples do not fill files of samples_per_file {samples_per_file}. Use "
            f"{samples - remainder or samples_per_file}."
        )
    if len(found) < needed:
        raise ValueError(
            f"{folder} has {len(found)} files {' or '.join(f'*{end}' for end in ENDINGS)}, but "
            f"{samples} samples need {needed}. Use {len(found) * samples_per_file} or fewer."
        )
    files = tuple(folder / name for name in found[:needed])
    volumes = VolumeFiles(files, shape, target_size, samples_per_file, apply_log, subtract_mean)
    if files:
        volumes.targets([0])
    return volumes


def normalise(volume: np.ndarray, out: np.ndarray, *, apply_log: bool) -> None:
    """Write a volume of counts to a float32 array: `log(x + 1)`, or `x` divided by its mean."""
    out[...] = volume
    if apply_log:
        out += 1
        np.log(out, out=out)
    else:
        # An empty volume stays zero.
        out /= volume.mean(dtype=np.float64) or 1.0


@contextlib.contextmanager
def staged(
    volumes: VolumeFiles, indices: Iterable[int], folder: Path | None
) -> Iterator[VolumeFiles]:
    """Copy files to a local disk for the duration of a run.

    Args:
        volumes: the original files.
        indices: indices of the files to copy; the others are read in place.
        folder: parent folder of the copies; by default that of temporary files.

    Raises:
        ValueError: if a file cannot be read or the disk is full.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="convoy-staged-", dir=folder) as copies:
        files = list(volumes.files)
        for index in indices:
            copy = Path(copies) / f"{index:08}-{files[index].name}"
            try:
                shutil.copyfile(files[index], copy)
            except OSError as error:
                raise ValueError(
                    f"{files[index]} cannot be copied to {copies}: {error.strerror}. Set "
                    "data.stage_dir to a folder with more space, or data.staged_files to false."
                ) from None
            files[index] = copy
        yield replace(volumes, files=tuple(files), _last={})


class RandomVolumes:
    """Random volumes and targets between 0 and 1, all different.

    Volumes are windows of one sequence of random numbers, so reading one costs only a copy.

    Args:
        samples: number of volumes.
        shape: shape of a volume, with its channels.
        target_size: number of targets of a volume.
        seed: seed of the random numbers.
    """

    def __init__(self, samples: int, shape: tuple[int, ...], target_size: int, seed: int) -> None:
        self.samples = samples
        self.shape = shape
        self.target_size = target_size
        rng = np.random.default_rng(seed)
        size = math.prod(shape)
        self._starts = max(size, samples)
        # A stride coprime to the number of starts makes all windows different; near the golden
        # ratio, windows of neighbouring samples are far apart.
        self._stride = next(
            stride
            for stride in range(round(self._starts * 0.618), self._starts + 2)
            if math.gcd(stride, self._starts) == 1
        )
        self._numbers = rng.random(size + self._starts, np.float32)
        self._targets = rng.random((samples, target_size), np.float32)

    def __len__(self) -> int:
        return self.samples

    def read(self, index: int, out: np.ndarray) -> np.ndarray:
        start = index * self._stride % self._starts
        out[...] = self._numbers[start : start + out.size].reshape(out.shape)
        return self._targets[index]

    def targets(self, indices: Sequence[int]) -> np.ndarray:
        return self._targets[list(indices)]
