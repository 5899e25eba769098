"""Volumes with their targets, one by one: in the record files of CosmoFlow's data set, or random.

A record is a `tf.train.Example` with `x`, the bytes of 16-bit numbers, and `y`, floats.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
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
        """Of one volume, with its channels."""
        ...

    @property
    def target_size(self) -> int: ...

    def __len__(self) -> int: ...

    def read(self, index: int, out: np.ndarray) -> np.ndarray:
        """Put a volume into a float32 array, and return its targets.

        Raises:
            DamagedDataError: if it is not what was written; the message names the file.
        """
        ...


def encode(volume: np.ndarray, targets: Sequence[float]) -> bytes:
    """Return the data of a record with a volume and its targets."""
    stored = np.ascontiguousarray(volume, STORED)
    return examples.encode(
        {_VOLUME: [stored.tobytes()], _TARGETS: [float(target) for target in targets]}
    )


def decode(data: bytes, shape: tuple[int, ...], target_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the volume and the targets of a record.

    Raises:
        DamagedDataError: if they are not there, or are of another size.
    """
    found = examples.decode(data, (_VOLUME, _TARGETS))
    volume = found.get(_VOLUME, [])
    if len(volume) != 1 or not isinstance(volume[0], bytes):
        raise DamagedDataError(f"it has no volume: no feature {_VOLUME!r} of bytes")
    if len(volume[0]) != math.prod(shape) * STORED.itemsize:
        raise DamagedDataError(
            f"its volume has {len(volume[0]):,} bytes, and one of the shape {list(shape)} has "
            f"{math.prod(shape) * STORED.itemsize:,}. Set data.sample_shape to that of the files"
        )
    targets = found.get(_TARGETS, [])
    if len(targets) != target_size or not all(isinstance(value, float) for value in targets):
        raise DamagedDataError(
            f"it has {len(targets)} targets, and {target_size} were expected. Set "
            "data.target_shape to that of the files"
        )
    return np.frombuffer(volume[0], STORED).reshape(shape), np.array(targets, np.float32)


@dataclass(frozen=True)
class VolumeFiles:
    """Volumes in record files.

    Attributes:
        files: each with equally many records.
        shape: of a volume, with its channels.
        target_size: targets of a volume.
        samples_per_file: records of a file.
        apply_log: whether volumes are `log(x + 1)`, else `x` over its mean.
        subtract_mean: whether a volume's mean is then taken from it.
    """

    files: tuple[Path, ...]
    shape: tuple[int, ...]
    target_size: int
    samples_per_file: int = 1
    apply_log: bool = False
    subtract_mean: bool = False
    # The records of the file that was read last: those of one file come one after the other.
    _last: dict[int, list[bytes]] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.files) * self.samples_per_file

    @property
    def stored_bytes(self) -> int:
        """What all files take on disk."""
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
        """Return the targets of some volumes."""
        out = np.empty(self.shape, np.float32)
        return np.stack([self.read(index, out) for index in indices])

    def _records(self, file: int) -> list[bytes]:
        if file not in self._last:
            path = self.files[file]
            try:
                found = list(records.read_all(path))
            except OSError as error:
                raise DamagedDataError(f"{path} cannot be read: {error.strerror}.") from None
            if len(found) != self.samples_per_file:
                raise DamagedDataError(
                    f"{path} has {len(found)} records, and data.samples_per_file is "
                    f"{self.samples_per_file}."
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
    """Return the first volumes in a folder, by the names of their files.

    The first file is read, so that files of another shape are found before anything is compiled.

    Raises:
        ValueError: if there are too few.
        DamagedDataError: if the first is not what was asked for.
    """
    if importlib.util.find_spec("google_crc32c") is None:
        raise ValueError(
            "Checking volumes needs the package google-crc32c. Install it with: "
            "pip install google-crc32c"
        )
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}. Set data.data_dir to one that has it.")
    found = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(ENDINGS))
    needed, rest = divmod(samples, samples_per_file)
    if rest:
        raise ValueError(
            f"{samples} samples do not fill files of samples_per_file {samples_per_file}. Ask for "
            f"{samples - rest or samples_per_file}."
        )
    if len(found) < needed:
        raise ValueError(
            f"{folder} has {len(found)} files {' or '.join(f'*{end}' for end in ENDINGS)}, and "
            f"{samples} samples take {needed}. Ask for {len(found) * samples_per_file} or fewer."
        )
    files = tuple(folder / name for name in found[:needed])
    volumes = VolumeFiles(files, shape, target_size, samples_per_file, apply_log, subtract_mean)
    if files:
        volumes.targets([0])
    return volumes


def normalise(volume: np.ndarray, out: np.ndarray, *, apply_log: bool) -> None:
    """Put a volume of counts into a float32 array: `log(x + 1)`, or `x` over its mean."""
    out[...] = volume
    if apply_log:
        out += 1
        np.log(out, out=out)
    else:
        # A volume with nothing in it stays zero.
        out /= volume.mean(dtype=np.float64) or 1.0


class RandomVolumes:
    """Volumes and targets of pure chance, from 0 to 1, each different from all others.

    They are windows of one sequence of random numbers, so that reading one costs a copy.

    Args:
        samples: how many.
        shape: of a volume, with its channels.
        target_size: targets of a volume.
        seed: of chance.
    """

    def __init__(self, samples: int, shape: tuple[int, ...], target_size: int, seed: int) -> None:
        self.samples = samples
        self.shape = shape
        self.target_size = target_size
        rng = np.random.default_rng(seed)
        size = math.prod(shape)
        self._begins = max(size, samples)
        # Without a common divisor all windows begin elsewhere, those of neighbours far apart.
        self._stride = next(
            stride
            for stride in range(round(self._begins * 0.618), self._begins + 2)
            if math.gcd(stride, self._begins) == 1
        )
        self._numbers = rng.random(size + self._begins, np.float32)
        self._targets = rng.random((samples, target_size), np.float32)

    def __len__(self) -> int:
        return self.samples

    def read(self, index: int, out: np.ndarray) -> np.ndarray:
        begin = index * self._stride % self._begins
        out[...] = self._numbers[begin : begin + out.size].reshape(out.shape)
        return self._targets[index]

    def targets(self, indices: Sequence[int]) -> np.ndarray:
        """Return the targets of some volumes."""
        return self._targets[list(indices)]
