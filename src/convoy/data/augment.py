"""Random changes to batches of images on the host. All take `(n, height, width, channels)`."""

from __future__ import annotations

from typing import Literal

import numpy as np
from convoy.data.catalog import CHANNELS, Normalisation

Border = Literal["zeros", "reflect"]
"""What is around an image: nothing, or its own pixels as in a mirror at its edge."""


def random_flip(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirror half of the images from left to right."""
    return flip(images, rng.random(len(images)) < 0.5)


def flip(images: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Mirror the chosen images from left to right."""
    return np.where(chosen[:, None, None, None], images[:, :, ::-1], images)


def random_crop(
    images: np.ndarray, padding: int, rng: np.random.Generator, border: Border = "zeros"
) -> np.ndarray:
    """Cut each image, at a place of its own, out of itself with a border around it."""
    count, height, width, _ = images.shape
    padded = np.pad(
        images,
        ((0, 0), (padding, padding), (padding, padding), (0, 0)),
        "constant" if border == "zeros" else "reflect",
    )
    tops, lefts = rng.integers(0, 2 * padding + 1, (2, count))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (1, 2))
    return windows[np.arange(count), tops, lefts].transpose(0, 2, 3, 1)


def mixup(
    images: np.ndarray, labels: np.ndarray, alpha: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mix each image with another one of the batch, and their label shares in the same way.

    Args:
        images: numbers, not bytes.
        labels: a share for each class.
        alpha: both parameters of the Beta distribution that the share is drawn from.
        rng: the source of chance.

    Reference: Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018.
    """
    share = rng.beta(alpha, alpha, len(images)).astype(np.float32)
    other = rng.permutation(len(images))
    of_image, of_label = share[:, None, None, None], share[:, None]
    mixed = images * of_image + images[other] * (1 - of_image)
    return mixed.astype(np.float32), labels * of_label + labels[other] * (1 - of_label)


def cutmix(
    images: np.ndarray, labels: np.ndarray, alpha: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Put a rectangle of another image of the batch into each, and mix label shares by its area.

    Args:
        images: numbers or bytes.
        labels: a share for each class.
        alpha: both parameters of the Beta distribution that the area is drawn from.
        rng: the source of chance.

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


def standardise(images: np.ndarray) -> np.ndarray:
    """Take each image's own mean away, and divide by its own deviation (1 if that is 0)."""
    images = images.astype(np.float32)
    mean = images.mean((1, 2, 3), keepdims=True)
    deviation = images.std((1, 2, 3), keepdims=True)
    return (images - mean) / np.where(deviation == 0, 1, deviation)


def normalise(images: np.ndarray, normalisation: Normalisation) -> np.ndarray:
    """Normalise bytes in one of the ways that data sets have."""
    if normalisation == "standardise":
        return standardise(images)
    scaled = images.astype(np.float32) / 255
    if normalisation == "scale":
        return scaled
    mean, deviation = np.array(CHANNELS[normalisation], np.float32)
    return (scaled - mean) / deviation


def to_bytes(images: np.ndarray) -> np.ndarray:
    """Cut numbers to bytes: fractions are dropped, and values wrap around at 256."""
    if images.dtype == np.uint8:
        return images
    return np.floor(images).astype(np.int64).astype(np.uint8)
