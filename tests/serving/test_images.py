import io
import json
import os
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from convoy.serving import decoding, image_header, images
from convoy.serving.errors import ServingError
from convoy.serving.images import decode_image, decode_images
from convoy.serving.signature import TensorSpec
from PIL import Image, ImageOps, PngImagePlugin
from tests.serving.bad_files import (
    chunk,
    compressed_chunk,
    exif_of,
    gif_with,
    jpeg_with,
    png_of,
    png_with,
    run_length_bmp,
    segment,
    webp_with,
)

RGB = TensorSpec("image", "uint8", (4, 6, 3))
GREY = TensorSpec("image", "uint8", (5, 5, 1))
MEGABYTE = 1 << 20


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
    passes = whole[:-2] + last * image_header.MAX_JPEG_SCANS + whole[-2:]
    # Each pass takes as long as one with details.
    assert decoded(passes) == 413


def test_damaged_metadata_are_ignored():
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12")
    assert decoded(data.getvalue()) is None


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


def interlaced(width, height, missing, fill=(0,)):
    """Return an interlaced PNG without some bytes at its end."""
    total = 0
    for x, y, step_x, step_y in images._ADAM7:
        columns, lines = -(-(width - x) // step_x), -(-(height - y) // step_y)
        total += lines * (1 + 3 * columns) if columns > 0 and lines > 0 else 0
    pixels = bytearray((bytes(fill) * total)[: total - missing])
    return png_of(width, height, bytes(pixels), interlaced=1)


def pixels_by_pillow(data, spec):
    """Return the pixels that Pillow decodes from the complete file."""
    height, width, channels = spec.shape
    turned = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    image = turned.convert("L" if channels == 1 else "RGB")
    fitted = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(fitted).reshape(spec.shape)


def random_image(mode, size=(33, 21)):
    rng = np.random.default_rng(0)
    width, height = size
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 1 << 16, (height, width), np.uint16))
    rgba = Image.fromarray(rng.integers(0, 256, (height, width, 4), np.uint8))
    return rgba.convert(mode) if mode in ("RGBA", "LA") else rgba.convert("RGB").convert(mode)


def saved(kind, mode="RGB", **options):
    file = io.BytesIO()
    random_image(mode).save(file, kind, **options)
    return file.getvalue()


def text_of(key, text, *, zip=False, international=False):
    info = PngImagePlugin.PngInfo()
    (info.add_itxt if international else info.add_text)(key, text, zip=zip)
    return info


XMP = '<rdf:Description tiff:Orientation="6"/>'
EXIFS = [exif_of([(0x112, 3, 1, struct.pack(">HH", turn, 0))]) for turn in range(1, 9)]
VALID = {
    **{
        f"{kind}, turned {i}": saved(kind, exif=exif)
        for kind in ("JPEG", "PNG", "WEBP")
        for i, exif in enumerate(EXIFS, 1)
    },
    **{f"JPEG, {mode}": saved("JPEG", mode) for mode in ("L", "CMYK")},
    **{f"JPEG, sampling {i}": saved("JPEG", subsampling=i, progressive=i % 2) for i in range(3)},
    "JPEG with a profile of several segments": saved(
        "JPEG",
        icc_profile=bytes(range(256)) * 1000,
        comment=b"c" * 60_000,
        xmp=XMP.encode(),
        quality=100,
    ),
    "JPEG with other images": saved("MPO", save_all=True, append_images=[random_image("RGB")]),
    **{f"PNG, {mode}": saved("PNG", mode) for mode in ("1", "L", "LA", "P", "RGBA", "I;16")},
    **{
        f"PNG, transparent {mode}": saved("PNG", mode, transparency=value)
        for mode, value in (
            ("P", 3),
            ("P", bytes(range(250))),
            ("L", 7),
            ("RGB", (1, 2, 3)),
            ("I;16", 9),
            ("1", 0),
        )
    },
    **{f"PNG of {bits} bits": saved("PNG", "P", bits=bits) for bits in (1, 2, 4)},
    "PNG, animated": saved("PNG", save_all=True, append_images=[random_image("L")]),
    "PNG with a profile": saved("PNG", icc_profile=bytes(range(256)) * 1000),
    "PNG with gamma": png_of(
        8,
        8,
        bytes(range(200)).translate(bytes(25) * 10 + bytes(6)),
        chunks=[chunk(b"gAMA", bytes(4)), chunk(b"sRGB", b"\0")],
    ),
    "PNG with a text": saved("PNG", pnginfo=text_of("Comment", "c" * 10_000, zip=True)),
    "PNG with XMP": saved("PNG", pnginfo=text_of("XML:com.adobe.xmp", XMP, international=True)),
    "PNG with compressed XMP": saved(
        "PNG", pnginfo=text_of("XML:com.adobe.xmp", XMP, international=True, zip=True)
    ),
    **{
        f"WEBP, {mode} {options}": saved("WEBP", mode, **options)
        for mode in ("RGB", "RGBA")
        for options in ({}, {"lossless": True})
    },
    "WEBP, animated": saved(
        "WEBP", save_all=True, append_images=[random_image("L")], background=(1, 2, 3, 4)
    ),
    "WEBP with a profile": saved("WEBP", icc_profile=bytes(1001), xmp=XMP.encode()),
    **{
        f"GIF {options}": saved("GIF", "P", **options)
        for options in ({}, {"transparency": 3}, {"interlace": False}, {"comment": b"c" * 999})
    },
    "GIF, animated": saved("GIF", save_all=True, append_images=[random_image("L")], disposal=2),
    **{f"BMP, {mode}": saved("BMP", mode) for mode in ("1", "L", "P", "RGB", "RGBA")},
    "BMP, compressed": run_length_bmp(6, 4, b"\2\1\4\0\0\0" * 4 + b"\0\1"),
}


@pytest.mark.parametrize("name", VALID)
@pytest.mark.parametrize("spec", [RGB, GREY], ids=["RGB", "grey"])
@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_the_pixels_are_those_that_pillow_decodes_from_the_complete_file(name, spec):
    data = VALID[name]
    assert (decode_image(data, spec) == pixels_by_pillow(data, spec)).all()


def test_interlaced_pixels_are_those_of_pillow():
    data = interlaced(13, 9, missing=0, fill=range(5))
    assert (decode_image(data, RGB) == pixels_by_pillow(data, RGB)).all()
    assert np.ptp(decode_image(data, RGB)) > 0


def peak_of(files, spec=RGB):
    """Return the largest memory of Python objects while files are decoded, and their error."""
    tracemalloc.start()
    try:
        decode_images(files, [len(files)], spec, 1000)
    except ServingError as error:
        return tracemalloc.get_traced_memory()[1], error.http_status
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak, None


BOMBS = {
    kind.decode(): png_with(
        *(
            compressed_chunk(kind, MEGABYTE, b"key%d" % i)
            for i in range(60 if kind != b"iCCP" else 1)
        )
    )
    for kind in (b"zTXt", b"iTXt", b"iCCP")
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.parametrize("count", [1, 100])
def test_compressed_metadata_are_not_decompressed(kind, count):
    decode_image(png_with(), RGB)
    peak, status = peak_of([BOMBS[kind]] * count)
    assert (status, peak < MEGABYTE) == (None, True)


@pytest.mark.parametrize("key", [b"Raw profile type exif", b"XML:com.adobe.xmp"])
def test_metadata_that_may_turn_an_image_are_decompressed_within_a_limit(key):
    data = png_with(*[compressed_chunk(b"zTXt", 10 * MEGABYTE, key)] * 10)
    decode_image(png_with(), RGB)
    peak, status = peak_of([data] * 5)
    assert (status, peak < 4 * MEGABYTE) == (None, True)


@pytest.mark.parametrize(
    "file", [compressed_chunk(b"zTXt", 1000, b"XML:com.adobe.xmp"), None], ids=["text", "BMP"]
)
def test_small_files_that_take_long_are_not_decoded_in_the_event_loop(file):
    data = png_with(file) if file else run_length_bmp(64, 64, bytes([64, 1, 0, 0]) * 64)

    def decode():
        return decode_image(data, RGB)

    assert decode().shape == (4, 6, 3)
    with pytest.raises(decoding.ExpensiveError):
        decoding._with_limit(decode, decoding.INLINE_PIXELS)


def test_compressed_bmps_have_a_limit_of_their_own():
    row = bytes([255, 1]) * 8 + b"\0\0"
    data = run_length_bmp(2040, 1000, row * 1000)
    decode_images([data], [1], RGB, 10)
    with pytest.raises(ServingError, match="have 4080000 pixels; at most 4000000 are read"):
        decode_images([data, data], [2], RGB, 10)


@pytest.mark.parametrize(
    "data",
    [
        png_with(*[chunk(b"prVt", b"")] * 85_000),
        jpeg_with(segment(0xFE, b"") * 250_000),
        gif_with(b"!\xfe" + b"\1a" * 500_000 + b"\0"),
        webp_with(b"abcd", 125_000),
    ],
    ids=lambda data: str(data[:4]),
)
def test_files_of_tiny_parts_never_reach_pillow(monkeypatch, data):
    monkeypatch.setattr(Image, "open", lambda *args, **options: pytest.fail("opened"))
    with pytest.raises(ServingError, match="chunks, segments or blocks") as raised:
        decode_image(data, RGB)
    assert raised.value.http_status == 413
    quarter = data[: len(data) // 8]
    with pytest.raises(ServingError):
        decode_images([quarter] * 100, [100], RGB, 1000)


def test_all_images_are_checked_before_the_first_is_decoded(monkeypatch):
    monkeypatch.setattr(Image, "open", lambda *args, **options: pytest.fail("opened"))
    small = encoded((8, 8))
    for last, match in (
        (png_of(1, 50_000_000, b""), "has 1 x 50000000 pixels"),
        (b"no image", "not an image that can be read"),
        (jpeg_with(segment(0xDD, b"\0\0") * 200), "segments before its pixels"),
    ):
        with pytest.raises(ServingError, match=match):
            decode_images([small, small, last], [3], RGB, 10)
    with pytest.raises(ServingError, match="have 120000000 pixels"):
        decode_images([png_of(10_000, 4_000, b"")] * 3, [3], RGB, 10)


def test_a_size_that_pillow_finds_elsewhere_is_refused(monkeypatch):
    header = image_header.Header("PNG", 9, 8, [(0, 1000)])
    monkeypatch.setattr(images, "read_header", lambda data, counter: header)
    with pytest.raises(ServingError, match="cut short or damaged"):
        decode_image(png_with(), RGB)


MEASURE = """
import gc, io, json, re, sys
from pathlib import Path
from convoy.serving import admission, images
from convoy.serving.admission import Admission, AdmissionOptions
from convoy.serving.signature import TensorSpec

def memory(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def measure(files, spec):
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    made = Admission(AdmissionOptions(max_memory_bytes=8 << 30), 1000)
    with made.request("connection"):
        images.decode_images(files, [len(files)], spec, 1000)
        return memory("VmHWM") - before, made.held_bytes

gc.disable()
small, large = TensorSpec("x", "uint8", (8, 8, 3)), TensorSpec("x", "uint8", (224, 224, 3))
names = sys.argv[1:]
files = {name: Path(name).read_bytes() for name in names}
# Pillow loads its decoders.
for file in files.values():
    measure([file], small)
found = {Path(name).name: measure([file] * 3, large) for name, file in files.items()}
found["all"] = measure([files[names[i % len(names)]] for i in range(100)], large)
print(json.dumps(found))
"""


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_the_memory_of_100_large_images_is_what_is_reserved(tmp_path):
    rng = np.random.default_rng(0)
    rough = rng.integers(0, 192, (125, 125, 4), np.uint8).repeat(8, 0).repeat(8, 1)
    image = Image.fromarray(rough + rng.integers(0, 64, rough.shape, np.uint8))
    for name, mode, options in (
        ("png", "RGBA", {"exif": EXIFS[5]}),
        ("jpeg", "RGB", {"exif": EXIFS[5]}),
        ("progressive.jpeg", "CMYK", {"progressive": True}),
        ("webp", "RGBA", {"exif": EXIFS[5]}),
        ("lossless.webp", "RGB", {"lossless": True}),
        ("gif", "P", {}),
        ("bmp", "RGB", {}),
    ):
        made = image.convert("RGB").convert(mode) if mode in ("CMYK", "P") else image.convert(mode)
        made.save(tmp_path / f"image.{name}", **options)
    files = sorted(map(str, tmp_path.iterdir()))
    # Memory is returned to the system when it is freed.
    settings = {"CONVOY_KEEP_MEMORY": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    environment = {**os.environ, **settings, "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *files],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = json.loads(done.stdout)
    for name, (peak, reserved) in found.items():
        assert peak <= reserved, (name, found)
    assert found["all"][1] < 50 * MEGABYTE
