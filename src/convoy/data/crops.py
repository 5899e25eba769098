"""Which part of an image is shown to a network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from convoy.data.jpeg import Box

Area = tuple[float, float, float, float]
"""Top, left, bottom and right of a part, from 0 to 1."""

WHOLE: Area = (0.0, 0.0, 1.0, 1.0)
SHARES = (0.05, 1.0)
RATIOS = (0.75, 1.33)
COVERED = 0.1
ATTEMPTS = 100
CENTRE = 0.875


def inception_crop(
    height: int, width: int, rng: np.random.Generator, objects: Sequence[Area] = ()
) -> Box:
    """Return a random part of an image, of random size and shape.

    It has 5 to 100 % of the image's pixels, is 0.75 to 1.33 times as wide as it is high, and covers
    a tenth of an object; of the image, if no objects are known. If 100 attempts do not find one, it
    is the whole image.

    Args:
        height: of the image.
        width: of the image.
        rng: the source of chance.
        objects: where things are in the image.

    Reference: Szegedy et al., "Going Deeper with Convolutions", 2014.
    """
    for _ in range(ATTEMPTS):
        share, ratio, down, right = rng.random(4)
        pixels = height * width * (SHARES[0] + share * (SHARES[1] - SHARES[0]))
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
    """Return the middle: what is left of the shorter side of 256 pixels when 224 are cut out."""
    side = max(1, round(CENTRE * min(height, width)))
    return Box((height - side) // 2, (width - side) // 2, side, side)


def _covered(box: Box, height: int, width: int, area: Area) -> float:
    """Return the share of an area that is inside of a box."""
    top, left, bottom, right = area
    high = min(box.top + box.height, bottom * height) - max(box.top, top * height)
    wide = min(box.left + box.width, right * width) - max(box.left, left * width)
    whole = (bottom - top) * height * (right - left) * width
    return max(high, 0) * max(wide, 0) / whole if whole > 0 else 0
