import io

import numpy as np
import pytest
from convoy.serving import images
from convoy.serving.errors import ServingError
from convoy.serving.images import decode_image
from convoy.serving.signature import TensorSpec
from PIL import Image

RGB = TensorSpec("image", "uint8", (4, 6, 3))


def encoded(size, color=(255, 0, 0), kind="PNG"):
    data = io.BytesIO()
    Image.new("RGB", size, color).save(data, kind)
    return data.getvalue()


@pytest.mark.parametrize("size", [(6, 4), (60, 40), (3, 2), (100, 4)])
def test_an_image_of_any_size_fills_the_shape(size):
    pixels = decode_image(encoded(size), RGB)
    assert (pixels.shape, pixels.dtype) == ((4, 6, 3), np.uint8)
    assert (pixels == [255, 0, 0]).all()


def test_an_image_is_converted_to_the_channels_of_the_input():
    pixels = decode_image(encoded((6, 4), (9, 9, 9)), TensorSpec("image", "uint8", (4, 6, 1)))
    assert pixels.shape == (4, 6, 1)
    assert (pixels == 9).all()


def test_the_centre_is_kept():
    data = io.BytesIO()
    image = Image.new("RGB", (12, 4))
    image.paste((0, 0, 255), (3, 0, 9, 4))
    image.save(data, "PNG")
    assert (decode_image(data.getvalue(), RGB)[:, 1:5] == [0, 0, 255]).all()


def test_what_is_no_image_or_too_large_is_refused(monkeypatch):
    with pytest.raises(ServingError, match="not an image that can be read"):
        decode_image(b"GIF89a", RGB)
    with pytest.raises(ServingError, match=r"takes float32 of shape \[2\], not bytes"):
        decode_image(encoded((2, 2)), TensorSpec("x", "float32", (2,)))
    monkeypatch.setattr(images, "MAX_PIXELS", 100)
    with pytest.raises(ServingError, match="has 20 x 20 pixels; at most 100 are read"):
        decode_image(encoded((20, 20)), RGB)
