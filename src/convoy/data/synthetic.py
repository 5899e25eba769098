"""Images and labels of pure chance, for measuring and trying out."""

from __future__ import annotations

import numpy as np
from convoy.data.catalog import DatasetInfo, Split

MEAN, DEVIATION = 127.0, 60.0


def synthetic_split(info: DatasetInfo, size: int, seed: int) -> Split:
    """Return one random image and label, as if they were many: they take the memory of one."""
    rng = np.random.default_rng(seed)
    cut = np.clip(rng.standard_normal(info.shape), -2, 2)
    image = np.rint(MEAN + DEVIATION * cut).clip(0, 255).astype(np.uint8)
    label = np.int32(rng.integers(info.classes))
    return np.broadcast_to(image, (size, *info.shape)), np.broadcast_to(label, (size,))
