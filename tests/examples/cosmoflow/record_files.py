"""Record files in the layout of CosmoFlow's data set, small."""

import numpy as np
from convoy.data import records

from cosmoflow import volume_files

SHAPE = (4, 4, 4, 2)


def volume(number, shape=SHAPE):
    return np.random.default_rng(number).integers(0, 30_000, shape).astype(np.int16)


def targets(number, count=4):
    return (np.arange(count, dtype=np.float32) + number) / 64


def write_volumes(folder, files, per_file=1, shape=SHAPE, compressed=False):
    """Write files whose n-th sample is `volume(n)` with `targets(n)`."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        numbers = range(file * per_file, (file + 1) * per_file)
        data = [volume_files.encode(volume(n, shape), targets(n).tolist()) for n in numbers]
        name = f"univ_ics_2019-03_a{file:05}.tfrecord" + (".gz" if compressed else "")
        records.write_file(folder / name, data, compressed=compressed)
    return folder
