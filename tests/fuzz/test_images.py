"""A bounded part of `make fuzz`: damaged and crafted images, for training and for serving."""

import random

import numpy as np
import pytest
from convoy.data import jpeg
from convoy.serving.errors import ServingError
from convoy.serving.images import decode_image
from convoy.serving.signature import TensorSpec
from tests import parts

from . import images
from .jpegs import JpegFuzz

COUNT = 2000
REQUEST_IMAGES = 300
SPEC = TensorSpec("image", "uint8", (8, 8, 3))


@pytest.mark.parametrize("decoder", ["turbo", "opencv"])
def test_damaged_jpegs_are_decoded_or_refused(monkeypatch, decoder):
    if decoder == "opencv":
        monkeypatch.setattr(jpeg, "_turbo", lambda: None)
    else:
        parts.require("libjpeg-turbo")
    fuzz = JpegFuzz(seed=0)
    for _ in range(COUNT):
        fuzz.run_one()
    assert not fuzz.faults, fuzz.faults[0]
    assert min(fuzz.outcomes["decoded"], fuzz.outcomes["refused"]) > COUNT // 10


def test_images_of_requests_are_decoded_or_refused():
    rng = random.Random(0)
    outcomes = []
    for _ in range(REQUEST_IMAGES):
        data = images.generate(rng)
        try:
            pixels = decode_image(data, SPEC)
        except ServingError:
            outcomes.append("refused")
        else:
            outcomes.append("decoded")
            assert (pixels.shape, pixels.dtype) == ((8, 8, 3), np.uint8)
    assert min(outcomes.count("decoded"), outcomes.count("refused")) > REQUEST_IMAGES // 10
