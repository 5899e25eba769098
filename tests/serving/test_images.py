import io

import numpy as np
import pytest
from convoy.serving import images
from convoy.serving.errors import ServingError
from convoy.serving.images import decode_image
from convoy.serving.signature import TensorSpec
from PIL import Image
from tests.serving.bad_files import png_of

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


def decoded(data):
    """Return the error of a file, or `None`."""
    try:
        decode_image(data, RGB)
    except ServingError as error:
        return error.http_status
    return None


@pytest.mark.parametrize("kind", images.FORMATS)
def test_a_file_cut_anywhere_or_damaged_anywhere_is_an_image_or_an_error(kind):
    rng = np.random.default_rng(0)
    data = io.BytesIO()
    pixels = rng.integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(pixels).save(data, kind)
    whole = data.getvalue()
    assert decoded(whole) is None
    for length in range(0, len(whole) - 8, max(1, len(whole) // 40)):
        assert decoded(whole[:length]) == 400
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        assert decoded(bytes(damaged)) in (None, 400, 413)


def test_a_jpeg_of_many_passes_is_refused():
    data = io.BytesIO()
    Image.new("RGB", (400, 400)).save(data, "JPEG", progressive=True)
    whole = data.getvalue()
    assert decoded(whole) is None
    last = whole[whole.rindex(b"\xff\xda") : -2]
    assert len(last) < 50
    passes = whole[:-2] + last * images.MAX_JPEG_SCANS + whole[-2:]
    # Each pass takes as long as one with details.
    assert decoded(passes) == 413


def test_damaged_metadata_are_an_error():
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12")
    assert decoded(data.getvalue()) in (None, 400)


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "EPS"])
def test_other_formats_are_refused(kind):
    with pytest.raises(ServingError, match="JPEG, PNG, WEBP, GIF, BMP"):
        decode_image(encoded((16, 16), kind=kind), RGB)


@pytest.mark.parametrize(
    "options", [{}, {"bits": 4}, {"mode": "1"}, {"mode": "LA"}, {"mode": "RGBA"}, {"mode": "I;16"}]
)
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 20)])
def test_complete_pngs_of_every_kind_are_accepted(options, size):
    mode = options.pop("mode", "P") if options else "RGB"
    data = io.BytesIO()
    Image.new(mode, size).save(data, "PNG", **options)
    assert decoded(data.getvalue()) is None


def test_an_interlaced_png_is_complete_with_all_its_passes():
    for rows, expected in ((0, None), (1, 400)):
        assert decoded(interlaced(13, 9, missing=rows)) == expected


def interlaced(width, height, missing):
    """Return an interlaced PNG of zeros without some bytes at its end."""
    total = 0
    for x, y, step_x, step_y in images._ADAM7:
        columns, lines = -(-(width - x) // step_x), -(-(height - y) // step_y)
        total += lines * (1 + 3 * columns) if columns > 0 and lines > 0 else 0
    return png_of(width, height, bytes(total - missing), interlaced=1)
