"""Decoding parts of images, and knowing those that are damaged."""

import cv2
import numpy as np
import pytest
from convoy.data import jpeg
from convoy.data.augment import centre_crop, inception_crop
from convoy.data.jpeg import Box
from convoy.data.records import DamagedDataError
from tests import parts

from .pictures import encode, make_image


@pytest.fixture(params=["turbo", "opencv"], autouse=True)
def decoder(request, monkeypatch):
    """Both ways to decode a JPEG."""
    if request.param == "opencv":
        monkeypatch.setattr(jpeg, "_turbo", lambda: None)
    else:
        parts.require("libjpeg-turbo")
    return request.param


def decode_part(data, box, size=(16, 16), **settings):
    out = np.zeros((*size, 3), np.uint8)
    jpeg.decode_part(data, box, out, **settings)
    return out


@pytest.fixture(scope="module")
def gradient():
    """Red grows downwards, green to the right."""
    rows, columns = np.mgrid[0:256, 0:320]
    return np.stack([rows, columns * 255 // 319, np.full_like(rows, 90)], axis=-1).astype("uint8")


def test_the_header_says_the_size_and_where_pixels_begin():
    data = encode(make_image(0, 60, 80))
    header = jpeg.read_header(data)
    assert (header.height, header.width, header.channels) == (60, 80, 3)
    assert data[header.scan : header.scan + 2] == b"\xff\xda"
    assert jpeg.read_header(encode(make_image(0), ".png")) is None


@pytest.mark.parametrize("ending", [".jpg", ".png"])
def test_a_part_is_that_part_in_the_right_colours(gradient, ending):
    out = decode_part(encode(gradient, ending), Box(100, 40, 64, 64)).astype(int)
    np.testing.assert_allclose(out[..., 0].mean(1), 100 + 4 * np.arange(16) + 1.5, atol=4)
    np.testing.assert_allclose(out[..., 1].mean(0), (40 + 4 * np.arange(16) + 1.5) * 0.8, atol=4)
    np.testing.assert_allclose(out[..., 2], 90, atol=4)


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
def test_fewer_pixels_by_the_decoder_show_the_same(gradient, shrink):
    data = encode(gradient)
    side = 16 * shrink
    out = decode_part(data, Box(64, 96, side, side)).astype(int)
    whole = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    part = whole[64 : 64 + side, 96 : 96 + side].reshape(16, shrink, 16, shrink, 3).mean((1, 3))
    np.testing.assert_allclose(out, part, atol=6)


def test_both_decoders_show_nearly_the_same(gradient, decoder, monkeypatch, rng):
    data = encode(make_image(1, 200, 300))
    boxes = [Box(0, 0, 200, 300), *(inception_crop(200, 300, rng) for _ in range(20))]
    here = [decode_part(data, box, (40, 48)).astype(int) for box in boxes]
    monkeypatch.setattr(jpeg, "_turbo", lambda: None)
    there = [decode_part(data, box, (40, 48)).astype(int) for box in boxes]
    for one, other in zip(here, there, strict=True):
        assert np.abs(one - other).mean() < 1.5


def test_mirrored(gradient):
    data, box = encode(gradient), Box(0, 0, 64, 64)
    np.testing.assert_array_equal(
        decode_part(data, box, flip=True), decode_part(data, box)[:, ::-1]
    )


def test_grey_images_have_three_channels(gradient):
    out = decode_part(encode(gradient[..., :1]), Box(0, 0, 32, 32))
    np.testing.assert_array_equal(out[..., 0], out[..., 2])


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_a_jpeg_cut_short_is_refused(gradient, share):
    data = encode(gradient)
    with pytest.raises(DamagedDataError, match="it is a JPEG"):
        decode_part(data[: int(share * len(data))], Box(0, 0, 32, 32))


@pytest.mark.parametrize("data", [b"", b"nothing", b"\xff\xd8", b"\xff\xd8\xff\xe0\x00"])
def test_what_is_no_image_is_refused(data):
    with pytest.raises(DamagedDataError):
        decode_part(data, Box(0, 0, 32, 32))
    with pytest.raises(DamagedDataError):
        jpeg.check(data)


def test_other_formats_become_a_jpeg_and_jpegs_stay_as_they_are(gradient):
    data = encode(gradient)
    assert jpeg.as_plain_jpeg(data) is data
    other = jpeg.as_plain_jpeg(encode(gradient, ".png"))
    assert jpeg.read_header(other)[:2] == (256, 320)


# Crops ----------------------------------------------------------------------------------------


def test_random_parts_are_inside_and_of_all_sizes_and_shapes(rng):
    boxes = np.array([inception_crop(300, 400, rng) for _ in range(2000)])
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 300).all()
    assert (left + width <= 400).all()
    shares, ratios = height * width / 120_000, width / height
    # A tenth of the image is covered; else sizes are spread evenly as far as they fit.
    assert 0.099 < shares.min() < 0.12
    assert shares.max() > 0.95
    assert 0.74 < ratios.min() < 0.78
    assert 1.28 < ratios.max() < 1.34
    assert len(np.unique(top)) > 100


def test_random_parts_show_an_object(rng):
    """One in the lower right corner."""
    for _ in range(300):
        box = inception_crop(200, 200, rng, [(0.9, 0.9, 1.0, 1.0)])
        if (box.height, box.width) != (200, 200):
            assert box.top + box.height > 180
            assert box.left + box.width > 180


def test_an_image_of_no_possible_shape_is_shown_whole(rng):
    assert inception_crop(2, 300, rng) == Box(0, 0, 2, 300)


def test_the_middle():
    assert centre_crop(256, 300) == Box(16, 38, 224, 224)
    assert centre_crop(1, 1) == Box(0, 0, 1, 1)


@pytest.mark.parametrize("settings", [[], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]])
def test_a_size_that_cannot_be_true_is_refused_before_decoding(settings):
    """Decoding would take gigabytes and a minute."""
    data = bytearray(cv2.imencode(".jpg", make_image(0), settings)[1].tobytes())
    frame = next(place for m in (b"\xff\xc0", b"\xff\xc2") if (place := data.find(m)) > 0)
    data[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(DamagedDataError, match="header claims 4294836225 pixels"):
        decode_part(bytes(data), Box(0, 0, 65535, 65535))


def test_an_image_of_one_colour_is_not_taken_for_a_damaged_one():
    data = encode(np.full((4000, 4000, 3), 255, np.uint8))
    assert 4000 * 4000 / len(data) > 50
    assert (decode_part(data, Box(0, 0, 4000, 4000)) == 255).all()
