"""Random augmentation and normalisation of images on the host.

Functions of batches take arrays of shape `(n, height, width, channels)`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from convoy.data.catalog import CHANNELS, DatasetInfo, Normalisation
from convoy.data.jpeg import Area, Box
from convoy.data.rand_augment import rand_augment
from convoy.types import Tensor

Batch = tuple[np.ndarray, np.ndarray]
"""Images and their labels."""

Border = Literal["zeros", "reflect"]
"""Padding around an image: zeros, or its own pixels reflected at the edge."""

Output = Literal["normalised", "numbers", "bytes", "unchanged"]

WHOLE: Area = (0.0, 0.0, 1.0, 1.0)
# Random crops: fraction of the image's area, ratio of width to height, covered fraction of an
# object, and number of attempts.
AREAS = (0.05, 1.0)
RATIOS = (0.75, 1.33)
COVERED = 0.1
ATTEMPTS = 100
# 224 of 256 pixels.
CENTRE = 0.875


def random_flip(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Flip half of the images from left to right."""
    return flip(images, rng.random(len(images)) < 0.5)


def flip(images: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Flip the chosen images from left to right."""
    return np.where(chosen[:, None, None, None], images[:, :, ::-1], images)


def random_crop(
    images: np.ndarray, padding: int, rng: np.random.Generator, border: Border = "zeros"
) -> np.ndarray:
    """Pad each image, and crop it to its size at a random position."""
    count, height, width, _ = images.shape
    padded = np.pad(
        images,
        ((0, 0), (padding, padding), (padding, padding), (0, 0)),
        "constant" if border == "zeros" else "reflect",
    )
    tops, lefts = rng.integers(0, 2 * padding + 1, (2, count))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (1, 2))
    return windows[np.arange(count), tops, lefts].transpose(0, 2, 3, 1)


def inception_crop(
    height: int, width: int, rng: np.random.Generator, objects: Sequence[Area] = ()
) -> Box:
    """Return a random part of an image, of random size and aspect ratio.

    It has 5 to 100 % of the image's pixels, is 0.75 to 1.33 times as wide as high, and covers at
    least a tenth of an object, or of the image if no objects are known. If 100 attempts do not find
    one, it is the whole image.

    Args:
        height: height of the image.
        width: width of the image.
        rng: random generator.
        objects: bounding boxes of the objects in the image.

    Reference: Szegedy et al., "Going Deeper with Convolutions", 2014.
    """
    for _ in range(ATTEMPTS):
        fraction, ratio, down, right = rng.random(4)
        pixels = height * width * (AREAS[0] + fraction * (AREAS[1] - AREAS[0]))
        ratio = RATIOS[0] + ratio * (RATIOS[1] - RATIOS[0])
        box_height, box_width = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if not (0 < box_height <= height and 0 < box_width <= width):
            continue
        top, left = int(down * (height - box_height + 1)), int(right * (width - box_width + 1))
        box = Box(top, left, box_height, box_width)
        if any(_covered(box, height, width, area) >= COVERED for area in objects or (WHOLE,)):
            return box
    return Box(0, 0, height, width)


def centre_crop(height: int, width: int) -> Box:
    """Return the square in the middle of an image whose side is 87.5 % of the shorter one."""
    side = max(1, round(CENTRE * min(height, width)))
    return Box((height - side) // 2, (width - side) // 2, side, side)


def _covered(box: Box, height: int, width: int, area: Area) -> float:
    """Return the fraction of an area that lies inside a box."""
    top, left, bottom, right = area
    high = min(box.top + box.height, bottom * height) - max(box.top, top * height)
    wide = min(box.left + box.width, right * width) - max(box.left, left * width)
    total = (bottom - top) * height * (right - left) * width
    return max(high, 0) * max(wide, 0) / total if total > 0 else 0


def mixup(images: np.ndarray, labels: np.ndarray, alpha: float, rng: np.random.Generator) -> Batch:
    """Blend each image and its label with another one of the batch.

    Args:
        images: floating-point images.
        labels: a probability for each class.
        alpha: both parameters of the Beta distribution of the blending weight.
        rng: random generator.

    Reference: Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018.
    """
    weight = rng.beta(alpha, alpha, len(images)).astype(np.float32)
    other = rng.permutation(len(images))
    image_weight, label_weight = weight[:, None, None, None], weight[:, None]
    mixed = images * image_weight + images[other] * (1 - image_weight)
    return mixed.astype(np.float32), labels * label_weight + labels[other] * (1 - label_weight)


def cutmix(images: np.ndarray, labels: np.ndarray, alpha: float, rng: np.random.Generator) -> Batch:
    """Paste a rectangle of another image of the batch into each, and blend labels by its area.

    Args:
        images: images of any type.
        labels: a probability for each class.
        alpha: both parameters of the Beta distribution of the area.
        rng: random generator.

    Reference: Yun et al., "CutMix", 2019.
    """
    count, height, width, _ = images.shape
    side = np.sqrt(1 - rng.beta(alpha, alpha, count))
    other = rng.permutation(count)
    inside = np.ones((count, height, width), bool)
    for axis, length in ((1, height), (2, width)):
        centre, half = rng.integers(0, length, count), (side * length / 2).astype(int)
        first = np.maximum(centre - half, 0)[:, None]
        last = np.minimum(centre + half, length)[:, None]
        along = (np.arange(length) >= first) & (np.arange(length) < last)
        inside &= along[:, :, None] if axis == 1 else along[:, None, :]
    kept = (1 - inside.mean((1, 2)))[:, None].astype(np.float32)
    mixed = np.where(inside[..., None], images[other], images)
    return mixed, labels * kept + labels[other] * (1 - kept)


def normalise(images: np.ndarray, normalisation: Normalisation) -> np.ndarray:
    """Normalise images whose pixels are from 0 to 255, by one of `DatasetInfo.normalisation`."""
    return normalise_by(np, images.astype(np.float32), normalisation)


def normalise_by(numpy: Any, images: Tensor, normalisation: Normalisation) -> Tensor:
    """Normalise images of float32.

    Args:
        numpy: module of the operations: NumPy on the host, `keras.ops` on the device.
        images: images whose pixels are from 0 to 255.
        normalisation: one of `DatasetInfo.normalisation`.
    """
    if normalisation == "standardise":
        mean = numpy.mean(images, (1, 2, 3), keepdims=True)
        deviation = numpy.std(images, (1, 2, 3), keepdims=True)
        # An image without contrast is only centred.
        return (images - mean) / numpy.where(deviation == 0, 1.0, deviation)
    scaled = images / 255
    if normalisation == "scale":
        return scaled
    mean, deviation = (
        numpy.reshape(numpy.array(values, "float32"), (1, 1, 1, -1))
        for values in CHANNELS[normalisation]
    )
    return (scaled - mean) / deviation


def to_bytes(images: np.ndarray) -> np.ndarray:
    """Convert numbers to bytes: fractions are dropped, and values wrap around at 256."""
    if images.dtype == np.uint8:
        return images
    return np.floor(images).astype(np.int64).astype(np.uint8)


@dataclass(frozen=True)
class Transformation:
    """Random augmentation of a batch, and conversion to the form that is moved to the device.

    Attributes:
        info: description of the dataset.
        output: form of the result: normalised numbers, bytes as numbers, bytes, or unchanged.
        flip: whether images are flipped at random.
        crop: whether images are padded and cropped at random.
        border: padding of random crops.
        rand_augment: magnitude of RandAugment; 0 for none.
        mixup: alpha of mixup; 0 for none.
        cutmix: alpha of CutMix; 0 for none.
    """

    info: DatasetInfo
    output: Output = "normalised"
    flip: bool = False
    crop: bool = False
    border: Border = "zeros"
    rand_augment: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    @property
    def is_random(self) -> bool:
        return any((self.flip, self.crop, self.rand_augment, self.mixup, self.cutmix))

    @property
    def dtype(self) -> np.dtype:
        """Type of the resulting images."""
        return np.dtype(np.uint8 if self.output == "bytes" else np.float32)

    def __call__(self, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Batch:
        if self.rand_augment:
            x = rand_augment(x, self.rand_augment, rng)
        if self.flip:
            x = random_flip(x, rng)
        x = self.convert(x)
        if self.crop:
            x = random_crop(x, self.info.crop_padding, rng, self.border)
        if not (self.mixup or self.cutmix):
            return np.ascontiguousarray(x), y
        one_hot = np.eye(self.info.classes, dtype=np.float32)[y]
        # With both, each batch is mixed in one way or the other.
        if self.mixup and (not self.cutmix or rng.random() < 0.5):
            return mixup(x, one_hot, self.mixup, rng)
        return cutmix(x, one_hot, self.cutmix, rng)

    def convert(self, x: np.ndarray) -> np.ndarray:
        """Return images in the form of the output."""
        if self.output == "unchanged":
            return x
        if self.output == "bytes":
            return to_bytes(x)
        if self.output == "numbers":
            return x.astype(np.float32)
        return normalise(x, self.info.normalisation)
