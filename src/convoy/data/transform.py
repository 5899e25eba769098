"""What happens to a batch of images on the host between reading it and moving it to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from convoy.data import augment
from convoy.data.batches import Batch
from convoy.data.catalog import DatasetInfo
from convoy.data.rand_augment import rand_augment

Output = Literal["normalised", "numbers", "bytes", "unchanged"]


@dataclass(frozen=True)
class Transformation:
    """Changes a batch at random, and brings it into the form that the device takes.

    Attributes:
        info: of the data set.
        output: normalised numbers; the bytes as numbers; bytes; or what came in.
        flip: whether to mirror at random.
        crop: whether to crop at random out of the image with a border around it.
        border: what that is made of.
        rand_augment: strength, or 0.
        mixup: alpha, or 0.
        cutmix: alpha, or 0.
    """

    info: DatasetInfo
    output: Output = "normalised"
    flip: bool = False
    crop: bool = False
    border: augment.Border = "zeros"
    rand_augment: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    @property
    def changes(self) -> bool:
        """Whether chance has a part in it."""
        chances = (self.flip, self.crop, self.rand_augment, self.mixup, self.cutmix)
        return any(chances)

    @property
    def dtype(self) -> np.dtype:
        """The type of images that come out."""
        return np.dtype(np.uint8 if self.output == "bytes" else np.float32)

    def __call__(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Batch:
        if self.rand_augment:
            x = rand_augment(x, self.rand_augment, rng)
        if self.flip:
            x = augment.random_flip(x, rng)
        x = self.bring(x)
        if self.crop:
            x = augment.random_crop(x, self.info.crop_padding, rng, self.border)
        if not (self.mixup or self.cutmix):
            return np.ascontiguousarray(x), y
        shares = np.eye(self.info.classes, dtype=np.float32)[y]
        # With both, each batch is mixed in one way or the other.
        if self.mixup and (not self.cutmix or rng.random() < 0.5):
            return augment.mixup(x, shares, self.mixup, rng)
        return augment.cutmix(x, shares, self.cutmix, rng)

    def bring(self, x: np.ndarray) -> np.ndarray:
        """Return images in the form that the device takes."""
        if self.output == "unchanged":
            return x
        if self.output == "bytes":
            return augment.to_bytes(x)
        if self.output == "numbers":
            return x.astype(np.float32)
        return augment.normalise(x, self.info.normalisation)
