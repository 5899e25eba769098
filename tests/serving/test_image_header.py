import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from convoy.serving import image_header
from convoy.serving.errors import ServingError
from convoy.serving.image_header import PartCounter, essential_parts, read_header
from convoy.serving.image_orientation import orientation
from PIL import Image, PngImagePlugin
from tests.serving.bad_files import (
    chunk,
    exif_of,
    gif_with,
    jpeg_with,
    png_with,
    run_length_bmp,
    segment,
    webp_with,
)

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
SHORT, LONG = 3, 4
XMP = '<rdf:Description tiff:Orientation="6"/>'


def encoded(kind, **options):
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, kind, **options)
    return file.getvalue()


def header_of(data):
    return read_header(data, PartCounter())


def essential(data):
    return essential_parts(data, header_of(data))


def count_parts(data):
    """Return the number of parts that are read, and the status of the error."""
    counter = PartCounter()
    try:
        read_header(data, counter)
    except ServingError as error:
        return counter.count, error.http_status
    except (ValueError, IndexError, struct.error):
        return counter.count, 400
    return counter.count, None


@pytest.mark.parametrize("kind", image_header.FORMATS)
def test_the_size_is_that_of_the_file(kind):
    header = header_of(encoded(kind))
    assert (header.format, header.width, header.height, header.pixels) == (kind, 30, 20, 600)


@pytest.mark.parametrize("options", [{"lossless": True}, {"exif": b"Exif\0\0"}])
def test_the_size_of_every_kind_of_webp(options):
    header = header_of(encoded("WEBP", **options))
    assert (header.width, header.height) == (30, 20)


def test_a_gif_is_as_large_as_its_first_image():
    data = bytearray(encoded("GIF"))
    struct.pack_into("<HH", data, 6, 3, 200)
    header = header_of(bytes(data))
    assert (header.width, header.height) == (30, 200)
    assert Image.open(io.BytesIO(data)).size == (30, 200)


def test_a_bmp_may_be_stored_from_the_top_or_have_a_short_header():
    data = bytearray(encoded("BMP"))
    struct.pack_into("<i", data, 22, -20)
    assert header_of(bytes(data)).height == 20
    short = struct.pack("<2s3I", b"BM", 0, 0, 26) + struct.pack("<I4H", 12, 30, 20, 1, 24)
    assert (header_of(short).width, header_of(short).height) == (30, 20)
    with pytest.raises(ValueError, match="has 13 bytes"):
        header_of(short[:14] + bytes([13]) + short[15:])


def test_another_format_is_unknown():
    for data in (b"", b"II*\0", b"%!PS", b"\xff\xd8", b"RIFF....WAVEfmt "):
        assert header_of(data) is None


def test_only_parts_that_determine_the_pixels_are_kept():
    profile, exif, comment = b"profile!" * 50, exif_of([(0x112, SHORT, 1, b"\0\6\0\0")]), b"c" * 99
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "c" * 99, zip=True)
    info.add_itxt("XML:com.adobe.xmp", XMP)
    info.add(b"prVt", b"private", after_idat=True)
    for data in (
        encoded("PNG", icc_profile=profile, exif=exif, pnginfo=info),
        encoded("JPEG", icc_profile=profile, exif=exif, comment=comment, xmp=XMP.encode()),
        encoded("WEBP", icc_profile=profile, exif=exif, xmp=XMP.encode()),
        encoded("GIF", comment=comment),
    ):
        whole, part = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(essential(data)))
        assert whole.tobytes() == part.tobytes()
        kept = {"icc_profile", "exif", "comment", "Comment", "xmp", "XML:com.adobe.xmp"}
        assert kept & set(whole.info)
        assert not kept & set(part.info)
        assert len(essential(data)) < len(data)


def test_the_chunks_of_a_png_become_one():
    rows = zlib.compress(bytes(8 * 25))
    start = png_with()[:33]
    bytewise = b"".join(chunk(b"IDAT", rows[i : i + 1]) for i in range(len(rows)))
    data = start + bytewise + chunk(b"tEXt", b"a\0b") + chunk(b"IEND", b"")
    assert essential(data).count(b"IDAT") == 1
    assert Image.open(io.BytesIO(essential(data))).tobytes() == bytes(3 * 64)


def test_the_first_image_of_an_animation_is_kept():
    others = [Image.fromarray(np.roll(PIXELS, shift, 0)) for shift in range(1, 6)]
    for kind, mark in (("WEBP", b"ANMF"), ("PNG", b"fdAT")):
        data = encoded(kind, save_all=True, append_images=others, lossless=True)
        assert data.count(mark) >= 5
        assert essential(data).count(mark) <= 1
        assert (np.asarray(Image.open(io.BytesIO(essential(data))).convert("RGB")) == PIXELS).all()


@pytest.mark.parametrize(
    "data",
    [
        png_with(*[chunk(b"prVt", b"")] * 85_000),
        png_with(*[chunk(b"tEXt", b"a\0")] * 85_000),
        jpeg_with(segment(0xFE, b"") * 250_000),
        jpeg_with(b"\xff\xd0" * 500_000),
        gif_with(b"!\xfe" + b"\1a" * 500_000 + b"\0"),
        gif_with(b"!\xfe\0" * 300_000),
        webp_with(b"abcd", 125_000),
        webp_with(b"ANMF", 125_000),
    ],
    ids=lambda data: str(data[:4]),
)
def test_a_megabyte_of_tiny_parts_is_refused_after_a_limited_number_of_them(data):
    count, status = count_parts(data)
    assert (status, len(data) > 1 << 19) == (413, True)
    assert count == image_header.MAX_PARTS + 1


def test_the_parts_of_all_files_are_counted():
    data, counter = jpeg_with(segment(0xFE, b"") * 40_000), PartCounter()
    read_header(data, counter)
    with pytest.raises(ServingError, match="more than 65536 chunks, segments or blocks"):
        read_header(data, counter)


@pytest.mark.parametrize("padding", [b"\xff", b"\0", b"\xff\0"])
def test_padding_between_segments_is_skipped_in_one_step(padding):
    few, count = jpeg_with(20_000 * padding), count_parts(jpeg_with(b""))[0]
    assert count_parts(few) == (count, None)
    assert len(essential(few)) < 1000
    assert count_parts(jpeg_with(500_000 * padding)) == (2, 400)
    many = gif_with(500_000 * padding)
    assert count_parts(many) == (1, 400)


@pytest.mark.parametrize(
    "segments",
    [
        segment(0xDB, bytes(65)) * 200,
        segment(0xDB, 900 * bytes(65)),
        segment(0xDD, b"\0\0") * 200,
    ],
)
def test_a_jpeg_with_many_tables_is_refused(segments):
    with pytest.raises(ServingError, match="of quantization tables; at most 100 and 4096"):
        header_of(jpeg_with(segments))


def test_a_bmp_that_claims_many_colors_is_refused():
    data = bytearray(run_length_bmp(6, 4, b""))
    struct.pack_into("<I", data, 46, 65_536)
    with pytest.raises(ServingError, match="has 65536 colours; at most 512 are read"):
        header_of(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        png_with(chunk(b"IHDR", bytes(13))),
        png_with(chunk(b"PLTE", bytes(3000))),
        png_with(chunk(b"tEXt", b"a\0b").replace(b"a", b"c")),
        jpeg_with(segment(0xC0, struct.pack(">BHHB", 8, 8, 8, 1) + bytes(3))),
        jpeg_with(segment(0xC0, struct.pack(">BHHB", 8, 8, 8, 1) + bytes(30_000))),
        jpeg_with(b"\xff\xda\0\x08\1\1\0\0\x3f\0"),
        jpeg_with(b"\xff\xd8"),
        jpeg_with(b"\xff\xf0"),
        jpeg_with(b"\xff\xfe\0\1"),
        jpeg_with(b"\xff\xfe\xff\xff"),
        gif_with(b";"),
        webp_with(b"abcd", 1)[:-1],
        webp_with(b"abcd\xff\xff", 1),
        b"RIFF\x20\0\0\0WEBPVP8 \x14\0\0\0" + bytes(20),
        b"RIFF\x20\0\0\0WEBPVP8L\x14\0\0\0" + bytes(20),
    ],
)
def test_a_damaged_structure_is_an_error(data):
    assert count_parts(data)[1] == 400


def placed(kind, exif=None, xmp=None):
    """Return files with metadata in every place where their format may have them."""
    options = {"exif": exif} if exif else {}
    if kind != "PNG":
        return [encoded(kind, **options, **({"xmp": xmp.encode()} if xmp else {}))]
    infos = []
    if xmp:
        for is_compressed in (False, True):
            infos.append(info := PngImagePlugin.PngInfo())
            info.add_itxt("XML:com.adobe.xmp", xmp, zip=is_compressed)
    if exif:
        tail = exif.removeprefix(b"Exif\0\0").hex()
        text = "\nexif\n" + f"{len(tail) // 2:8}\n" + tail[:20] + "\n" + tail[20:] + "\n"
        for is_compressed in (False, True):
            infos.append(info := PngImagePlugin.PngInfo())
            info.add_text("Raw profile type exif", text, zip=is_compressed)
    files = [encoded("PNG", pnginfo=info) for info in infos]
    if exif:
        end = chunk(b"IEND", b"")
        last = chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")) + end
        files += [encoded("PNG", exif=exif), encoded("PNG").replace(end, last)]
    return files


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("turn", [*range(1, 9), 0, 9])
def test_the_orientation_is_that_of_pillow(kind, turn):
    tags = [(0x10F, 2, 4, b"abc\0"), (0x112, SHORT, 1, struct.pack(">HH", turn, 0))]
    little = [(0x112, LONG, 1, struct.pack("<I", turn))]
    for exif in (exif_of(tags), exif_of(little, "<")):
        for data in placed(kind, exif):
            check_orientation(data, turn)
            assert orientation(data, header_of(data).metadata) == (turn or 1)
    for form in (f'tiff:Orientation="{turn}"', f"<tiff:Orientation>{turn}</tiff:Orientation>"):
        for data in placed(kind, xmp=f"<x>{form}</x>"):
            check_orientation(data, turn)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_data_come_before_xmp(kind):
    for turn, tag in ((3, 0x112), (6, 0x113)):
        exif = exif_of([(tag, SHORT, 1, b"\0\3\0\0")])
        if kind == "PNG":
            info = PngImagePlugin.PngInfo()
            info.add_itxt("XML:com.adobe.xmp", XMP)
            data = encoded("PNG", exif=exif, pnginfo=info)
        else:
            data = encoded(kind, exif=exif, xmp=XMP.encode())
        check_orientation(data, turn)


def check_orientation(data, expected):
    found = orientation(data, header_of(data).metadata)
    assert found == (Image.open(io.BytesIO(data)).getexif().get(0x112) or 1) == (expected or 1)


def test_long_exif_data_are_divided_into_segments():
    exif = exif_of([(0x10F + i, SHORT, 1, b"\0\6\0\0") for i in range(6)])
    parts = exif[:20], b"Exif\0\0" + exif[20:]
    data = jpeg_with(b"".join(segment(0xE1, part) for part in parts))
    check_orientation(data, 6)


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"MM",
        b"MM\0*\0\0\0\x08",
        b"MM\0*\xff\xff\xff\xff\0\1",
        b"MM\0*\0\0\0\x08\xff\xff" + bytes(30),
        b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0",
        b"XX" + exif_of([(0x112, SHORT, 1, b"\0\6\0\0")])[8:],
    ],
)
def test_damaged_metadata_do_not_turn_an_image(exif):
    data = jpeg_with(segment(0xE1, b"Exif\0\0" + exif))
    assert orientation(data, header_of(data).metadata) == 1
    for text in (b"\nexif\n  8\nabcxyz", b"one line", b"\n\n\n"):
        data = png_with(chunk(b"tEXt", b"Raw profile type exif\0" + text))
        assert orientation(data, header_of(data).metadata) == 1
    for text in (b"", b"\0", b"\0\0", b"\0\0\0", b"\0\1\0\0\0damaged", b"\0\0\0a\0"):
        data = png_with(chunk(b"iTXt", b"XML:com.adobe.xmp" + text))
        assert orientation(data, header_of(data).metadata) == 1


def test_exif_data_of_many_tags_that_overlap_take_no_memory():
    # Each tag claims half of the data.
    count = 1 << 15
    tags = [(0x200 + i, 7, count, struct.pack(">I", 8)) for i in range(5000)]
    data = jpeg_with(segment(0xE1, exif_of(tags)))
    header = header_of(data)
    tracemalloc.start()
    try:
        assert orientation(data, header.metadata) == 1
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()
