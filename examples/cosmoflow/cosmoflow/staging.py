"""Copies of files on a disk of this host, for as long as a run goes on."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from cosmoflow.volume_files import VolumeFiles


@contextlib.contextmanager
def staged(
    volumes: VolumeFiles, wanted: Iterable[int], folder: Path | None
) -> Iterator[VolumeFiles]:
    """Copy some of the files, and read those from where they were copied to.

    Args:
        volumes: where all files are.
        wanted: the numbers of those that this process reads; others are read where they are.
        folder: where a new folder for the copies is made; by default that for temporary files.

    Raises:
        ValueError: if there is no room, or a file cannot be read.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="convoy-staged-", dir=folder) as own:
        files = list(volumes.files)
        for number in wanted:
            target = Path(own) / f"{number:08}-{files[number].name}"
            try:
                shutil.copyfile(files[number], target)
            except OSError as error:
                raise ValueError(
                    f"{files[number]} cannot be copied to {own}: {error.strerror}. Set "
                    "data.stage_dir to a folder with more room, or data.staged_files to false."
                ) from None
            files[number] = target
        yield replace(volumes, files=tuple(files), _last={})
