"""A bounded part of `make fuzz`: damaged and crafted images, for training and for serving."""

import pytest
from convoy.data import jpeg
from tests import parts

from . import images
from .jpegs import JpegFuzz

COUNT = 2000
REQUEST_IMAGES = 300
CRAFTED_IMAGES = 30


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
    fuzz = images.ImageFuzz(seed=0)
    for _ in range(REQUEST_IMAGES):
        fuzz.run_one()
    assert not fuzz.faults, fuzz.faults[0]
    assert min(fuzz.outcomes["decoded"], fuzz.outcomes["refused"]) > REQUEST_IMAGES // 10


@pytest.mark.parametrize("craft", images.CRAFTED)
def test_crafted_files_of_every_kind_are_decoded_or_refused(craft):
    fuzz = images.ImageFuzz(seed=0)
    for _ in range(CRAFTED_IMAGES):
        fuzz.run_on(craft(fuzz.rng))
    assert not fuzz.faults, fuzz.faults[0]
    assert fuzz.outcomes.total() == CRAFTED_IMAGES
