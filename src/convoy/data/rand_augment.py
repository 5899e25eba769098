"""RandAugment: random operations on each image, all of one magnitude.

Reference: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search
space", 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

OPERATIONS_PER_IMAGE = 2
GREY = 128

Operation = Callable[["Image", float], "Image"]
"""An operation on an image, with a magnitude from -1 to 1."""


def rand_augment(images: np.ndarray, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Apply two random operations to each image of a batch.

    Args:
        images: bytes of shape `(n, height, width, 1 or 3)`.
        magnitude: magnitude of the operations, from 0 to 1.
        rng: random generator.
    """
    from PIL import Image

    operations = _operations()
    out = np.empty_like(images)
    for number, pixels in enumerate(images):
        image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        for chosen in rng.integers(0, len(operations), OPERATIONS_PER_IMAGE):
            image = operations[chosen](image, magnitude * (1 if rng.random() < 0.5 else -1))
        out[number] = np.asarray(image).reshape(pixels.shape)
    return out


def _operations() -> list[Operation]:
    from PIL import Image, ImageEnhance, ImageOps

    def grey(image: Image.Image) -> int | tuple[int, ...]:
        return GREY if image.mode == "L" else (GREY,) * 3

    def warp(image: Image.Image, *matrix: float) -> Image.Image:
        return image.transform(
            image.size,
            Image.Transform.AFFINE,
            matrix,
            Image.Resampling.BILINEAR,
            fillcolor=grey(image),
        )

    def enhance(kind: Any) -> Operation:
        return lambda image, by: kind(image).enhance(1 + 0.9 * by)

    return [
        lambda image, _: image,
        lambda image, _: ImageOps.autocontrast(image),
        lambda image, _: ImageOps.equalize(image),
        lambda image, by: ImageOps.posterize(image, 8 - round(4 * abs(by))),
        lambda image, by: ImageOps.solarize(image, round(256 * (1 - abs(by)))),
        lambda image, by: image.rotate(30 * by, Image.Resampling.BILINEAR, fillcolor=grey(image)),
        lambda image, by: warp(image, 1, 0.3 * by, 0, 0, 1, 0),
        lambda image, by: warp(image, 1, 0, 0, 0.3 * by, 1, 0),
        lambda image, by: warp(image, 1, 0, 0.45 * by * image.width, 0, 1, 0),
        lambda image, by: warp(image, 1, 0, 0, 0, 1, 0.45 * by * image.height),
        enhance(ImageEnhance.Color),
        enhance(ImageEnhance.Contrast),
        enhance(ImageEnhance.Brightness),
        enhance(ImageEnhance.Sharpness),
    ]
