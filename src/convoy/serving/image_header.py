"""Structure of image files, read without decompressing anything.

Pillow inflates texts and colour profiles a thousandfold while it opens a file, reads all EXIF tags,
and takes a step in Python for each of millions of empty chunks. It is therefore given only the
parts of a file that determine its pixels: `read_header` finds them, `essential_parts` joins them.
"""

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from convoy.serving.errors import too_large
from convoy.serving.gil import let_others_run
from convoy.serving.image_orientation import EXIF_START, Metadata, Range, Text

# Pillow supports more formats, but starts other programs for some of them.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
# Maximum number of chunks, segments and blocks in the files of a request. A PNG of 64 MB usually
# has 8,000 chunks, and a file with colour profile and metadata between 10 and 100 of them.
MAX_PARTS = 1 << 16
# Memory of the place of a part.
PART_BYTES = 128
# Maximum number of scans of a progressive JPEG. Usual files have ten; a scan of a few bytes takes
# as long to decode as one of megabytes.
MAX_JPEG_SCANS = 100
# Maximum number of a JPEG's segments that Pillow reads in Python, and of the bytes of its
# quantization tables. Files have about ten segments and at most four tables of 130 bytes.
MAX_JPEG_SEGMENTS = 100
MAX_JPEG_TABLE_BYTES = 4096
# Maximum number of colours in the palette of a BMP: Pillow takes a step in Python for each, whether
# the file has them or not.
MAX_BMP_COLORS = 512
# Some files have padding or stray bytes between their parts.
_MAX_GAP_BYTES = 1 << 16
# Parts that are read, and bytes that are searched, before other threads may run.
_LET_RUN_PARTS = 256
_COUNTED_BYTES = 1 << 15

_SIGNATURES = {
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "WEBP": re.compile(rb"RIFF....WEBPVP8[ LX]", re.DOTALL),
    "GIF": re.compile(rb"GIF8[79]a"),
    "BMP": re.compile(rb"BM"),
}
# Byte FF is padding before a marker, and FF 00 is data.
_JPEG_MARKER = re.compile(rb"\xff[\x01-\xfe]")
_JPEG_RESTARTS = range(0xD0, 0xD8)
_JPEG_FRAMES = {*range(0xC0, 0xD0), 0xDE} - {0xC4, 0xC8, 0xCC}
# Frames whose scans can be decoded row by row.
_JPEG_SEQUENTIAL = (0xC0, 0xC1, 0xC9)
_JPEG_SCAN, _JPEG_QUANTIZATION, _JPEG_EXIF, _JPEG_COMMENT = 0xDA, 0xDB, 0xE1, 0xFE
_JPEG_APPLICATIONS = range(0xE0, 0xF0)
# JFIF and Adobe: they tell the colour space.
_JPEG_COLORS = (0xE0, 0xEE)
_JPEG_KEPT = {*_JPEG_FRAMES, 0xC4, 0xCC, *range(0xDA, 0xE0), *_JPEG_COLORS}
_XMP_OF_JPEG = b"http://ns.adobe.com/xap/1.0/\0"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_MAX_PNG_COLOR_BYTES = 3 * 256
_XMP_OF_PNG = b"XML:com.adobe.xmp\0"
_EXIF_OF_PNG = b"exif\0"
_HEX_EXIF_OF_PNG = b"Raw profile type exif\0"
# Before an international text: whether it is compressed, the method, the language and the
# translated keyword.
_PNG_LANGUAGES = re.compile(rb"(.).[^\0]*\0[^\0]*\0", re.DOTALL)
_WEBP_IMAGE = (b"ALPH", b"VP8 ", b"VP8L", b"ANIM", b"ANMF")
_WEBP_PROFILE, _WEBP_EXIF, _WEBP_XMP = 0x20, 0x08, 0x04
_GIF_BLOCK = re.compile(rb"[,;!]")
_GIF_CONTROL = 0xF9
_BMP_HEADERS = (40, 52, 56, 64, 108, 124)
_BMP_RUNS = (1, 2)


@dataclass
class Header:
    """What the structure of an image file tells.

    Attributes:
        format: Pillow's name of the format.
        width: number of columns, as they are stored.
        height: number of rows, as they are stored.
        parts: what Pillow needs to decode it: parts of the file, and bytes between them.
        metadata: what can tell its orientation.
        is_buffered: whether the decoder of a JPEG keeps the coefficients of all pixels.
        is_run_length: whether it is a BMP with compression, which Pillow decodes in Python.
    """

    format: str
    width: int
    height: int
    parts: Sequence[Range | bytes]
    metadata: Metadata = field(default_factory=Metadata)
    is_buffered: bool = False
    is_run_length: bool = False

    @property
    def pixels(self) -> int:
        return self.width * self.height


class PartCounter:
    """Counts the parts of the files of a request.

    Attributes:
        count: number of parts so far.
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """Count one more part.

        Raises:
            ServingError: if there are too many.
        """
        self.count += 1
        if self.count > MAX_PARTS:
            raise too_large(
                f"The images of the request have more than {MAX_PARTS} chunks, segments or blocks. "
                "Save them without comments and metadata, or send several requests."
            )
        if not self.count % _LET_RUN_PARTS:
            let_others_run()


def read_header(data: bytes, counter: PartCounter) -> Header | None:
    """Return what the structure of an image file tells, or `None` for an unknown format.

    Args:
        data: the file.
        counter: counts the parts of the file.

    Raises:
        ServingError: if the file exceeds a limit.
        ValueError: if it is damaged.
        struct.error: if it is cut short.
        IndexError: if it is cut short.
    """
    for name, signature in _SIGNATURES.items():
        if signature.match(data):
            return _READERS[name](data, counter)
    return None


def essential_parts(data: bytes, header: Header) -> bytes:
    """Return an image file with nothing but its pixels, and what is needed to decode them."""
    view = memoryview(data)
    return b"".join(
        part if isinstance(part, bytes) else view[part[0] : part[1]] for part in header.parts
    )


def _read_jpeg(data: bytes, counter: PartCounter) -> Header:
    """Read the segments before the first scan."""
    kept: list[Range | bytes] = [(0, 2)]
    metadata, frame, size, table_bytes, start = Metadata(), None, (0, 0), 0, 0
    for marker, start, end in _jpeg_segments(data, counter):
        if marker in _JPEG_KEPT:
            kept.append((start, end))
        elif marker == _JPEG_EXIF:
            _note_jpeg_metadata(data, (start + 4, end), metadata)
        elif marker not in _JPEG_APPLICATIONS and marker != _JPEG_COMMENT:
            raise ValueError(f"The marker {marker:02x} is unknown.")
        if marker in _JPEG_FRAMES:
            if frame is not None:
                raise ValueError("There are several frames.")
            frame, size = marker, _jpeg_size(data, start + 4, end)
        elif marker == _JPEG_QUANTIZATION:
            table_bytes += end - start - 4
    if frame is None:
        raise ValueError("A scan comes before the frame.")
    _check_jpeg_tables(len(kept), table_bytes)
    # The scan, and all that follows.
    kept[-1] = (start, len(data))
    is_buffered = _count_scans(data, start) > 1 or frame not in _JPEG_SEQUENTIAL
    return Header("JPEG", *size, kept, metadata, is_buffered)


def _jpeg_segments(data: bytes, counter: PartCounter) -> Iterator[tuple[int, int, int]]:
    """Return markers, starts and ends of the segments up to the first scan."""
    marker, end = 0, 2
    while marker != _JPEG_SCAN:
        counter.add()
        start = _find(_JPEG_MARKER, data, end)
        marker, end = data[start + 1], start + 2
        if marker in _JPEG_RESTARTS:
            continue
        (length,) = struct.unpack_from(">H", data, end)
        end += length
        if length < 2 or end > len(data):
            raise ValueError("A segment is longer than the file, or shorter than its length.")
        yield marker, start, end


def _note_jpeg_metadata(data: bytes, place: Range, metadata: Metadata) -> None:
    start, end = place
    if data.startswith(EXIF_START, start, end):
        # Long EXIF data are divided into several segments.
        metadata.exif.append((start + len(EXIF_START), end))
    elif data.startswith(_XMP_OF_JPEG, start, end):
        metadata.xmp = Text(start + len(_XMP_OF_JPEG), end)


def _jpeg_size(data: bytes, start: int, end: int) -> tuple[int, int]:
    height, width, components = struct.unpack_from(">HHB", data, start + 1)
    if end - start != 6 + 3 * components:
        raise ValueError(f"A frame with {components} components has {end - start} bytes.")
    return width, height


def _check_jpeg_tables(segments: int, table_bytes: int) -> None:
    if segments > MAX_JPEG_SEGMENTS or table_bytes > MAX_JPEG_TABLE_BYTES:
        raise too_large(
            f"The JPEG has {segments} segments before its pixels, and {table_bytes} bytes of "
            f"quantization tables; at most {MAX_JPEG_SEGMENTS} and {MAX_JPEG_TABLE_BYTES} are "
            "read. Save it again."
        )


def _count_scans(data: bytes, start: int) -> int:
    """Return the number of scans of a JPEG, and perhaps of images that follow it in the file."""
    scans = 0
    for position in range(start, len(data), _COUNTED_BYTES):
        # In compressed data, each byte FF is followed by a zero, so the marker begins a scan.
        scans += data.count(b"\xff\xda", position, position + _COUNTED_BYTES + 1)
        if scans > MAX_JPEG_SCANS:
            raise too_large(
                f"The JPEG has more than {MAX_JPEG_SCANS} scans, the maximum. Save it as a "
                "baseline JPEG."
            )
        let_others_run()
    return scans


def _read_png(data: bytes, counter: PartCounter) -> Header:
    """Read all chunks; those of the pixels become one."""
    metadata, kept, pixels = Metadata(), dict[bytes, Range](), list[Range]()
    for kind, start, end in _png_chunks(data, counter):
        if kind == b"IDAT" and kept:
            pixels.append((start, end))
            continue
        if not pixels:
            _check_png_chunk(data, start, end)
        if kind == b"IHDR" or not kept:
            _check_png_header(kind, end - start, is_first=not kept)
            kept[kind] = start - 8, end + 4
        elif kind in (b"PLTE", b"tRNS") and not pixels:
            if end - start > _MAX_PNG_COLOR_BYTES:
                raise ValueError(f"A palette has {end - start} bytes.")
            kept[kind] = start - 8, end + 4
        elif kind == b"eXIf":
            metadata.exif = [(start, end)]
        elif kind in _PNG_TEXTS:
            _note_png_text(data, kind, (start, end), metadata)
    width, height = struct.unpack_from(">II", data, len(_PNG_START) + 8)
    total = sum(end - start for start, end in pixels)
    start_of_pixels = struct.pack(">I4s", total, b"IDAT")
    # Pillow does not check the checksums of pixels, so there is a zero in place of one.
    parts: list[Range | bytes] = [*kept.values(), start_of_pixels, *pixels, bytes(4), _PNG_END]
    return Header("PNG", width, height, [_PNG_START, *parts], metadata)


def _png_chunks(data: bytes, counter: PartCounter) -> Iterator[tuple[bytes, int, int]]:
    """Return kinds of the chunks, and starts and ends of their content, before the last chunk."""
    end = len(_PNG_START) - 4
    while True:
        counter.add()
        start = end + 12
        length, kind = struct.unpack_from(">I4s", data, start - 8)
        if kind == b"IEND":
            return
        end = start + length
        yield kind, start, end


def _check_png_header(kind: bytes, length: int, *, is_first: bool) -> None:
    if kind != b"IHDR" or length != 13 or not is_first:
        raise ValueError("A PNG begins with one header of 13 bytes.")


def _check_png_chunk(data: bytes, start: int, end: int) -> None:
    (expected,) = struct.unpack_from(">I", data, end)
    if zlib.crc32(memoryview(data)[start - 4 : end]) != expected:
        raise ValueError("The checksum of a chunk is wrong.")


def _note_png_text(data: bytes, kind: bytes, place: Range, metadata: Metadata) -> None:
    start, end = place
    if data.startswith(_XMP_OF_PNG, start, end):
        metadata.xmp = _png_text(data, kind, (start + len(_XMP_OF_PNG), end))
    elif data.startswith(_HEX_EXIF_OF_PNG, start, end):
        metadata.hex_exif = _png_text(data, kind, (start + len(_HEX_EXIF_OF_PNG), end))
    elif kind == b"tEXt" and data.startswith(_EXIF_OF_PNG, start, end):
        metadata.exif = [(start + len(_EXIF_OF_PNG), end)]


def _png_text(data: bytes, kind: bytes, place: Range) -> Text | None:
    """Return the place of a text, which follows its keyword, or `None` if there is no text."""
    start, end = place
    if kind == b"tEXt":
        return Text(start, end)
    if kind == b"zTXt":
        # A byte for the method comes first.
        return Text(start + 1, end, is_compressed=True)
    match = _PNG_LANGUAGES.match(data, start, end)
    return Text(match.end(), end, match[1] != b"\0") if match else None


def _read_webp(data: bytes, counter: PartCounter) -> Header:
    """Read all chunks of the file; of an animation, the first image is kept."""
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    if end > len(data):
        raise ValueError(f"The WebP has {len(data)} bytes; its header tells {end}.")
    first = data[12:16]
    width, height = _webp_size(data, first)
    flags = data[20] if first == b"VP8X" else 0
    metadata, kept, seen = Metadata(), [_webp_first_chunk(data, flags)], set[bytes]()
    for kind, start, stop in _webp_chunks(data, end, counter):
        if kind in _WEBP_IMAGE and not (kind == b"ANMF" and kind in seen):
            kept.append((start - 8, min(stop + stop % 2, end)))
        elif kind == b"EXIF" and flags & _WEBP_EXIF and kind not in seen:
            metadata.exif = [(start, stop)]
        elif kind == b"XMP " and flags & _WEBP_XMP and kind not in seen:
            metadata.xmp = Text(start, stop)
        seen.add(kind)
    total = sum(len(part) if isinstance(part, bytes) else part[1] - part[0] for part in kept)
    start_of_file = struct.pack("<4sI4s", b"RIFF", 4 + total, b"WEBP")
    return Header("WEBP", width, height, [start_of_file, *kept], metadata)


def _webp_chunks(data: bytes, end: int, counter: PartCounter) -> Iterator[tuple[bytes, int, int]]:
    """Return kinds, starts and ends of the chunks that follow the first one."""
    counter.add()
    if data[12:16] != b"VP8X":
        # Without the extended header, the first chunk is the only one.
        return
    position = 20 + struct.unpack_from("<I", data, 16)[0]
    while (position := position + position % 2) < end:
        counter.add()
        kind, length = struct.unpack_from("<4sI", data, position)
        start, position = position + 8, position + 8 + length
        if position > end:
            raise ValueError("A chunk ends after the file.")
        yield kind, start, position


def _webp_first_chunk(data: bytes, flags: int) -> Range | bytes:
    """Return the first chunk, without the flags for what is left out."""
    (length,) = struct.unpack_from("<I", data, 16)
    place = 12, 20 + length + length % 2
    if place[1] > len(data):
        raise ValueError("The first chunk ends after the file.")
    if data[12:16] != b"VP8X":
        return place
    flags &= ~(_WEBP_PROFILE | _WEBP_EXIF | _WEBP_XMP)
    return data[12:20] + bytes([flags]) + data[21 : place[1]]


def _webp_size(data: bytes, first: bytes) -> tuple[int, int]:
    if first == b"VP8X":
        width, high, height, highest = struct.unpack_from("<HBHB", data, 24)
        return 1 + width + (high << 16), 1 + height + (highest << 16)
    if first == b"VP8L":
        mark, bits = struct.unpack_from("<BI", data, 20)
        size, is_valid = (1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)), mark == 0x2F
    else:
        mark, width, height = struct.unpack_from("<3sHH", data, 23)
        size, is_valid = (width & 0x3FFF, height & 0x3FFF), mark == b"\x9d\x01*"
    if not is_valid:
        raise ValueError(f"The image begins with {mark!r}.")
    return size


def _read_gif(data: bytes, counter: PartCounter) -> Header:
    """Read the blocks before the first image."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    start = start_of_blocks = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    control = b""
    while True:
        counter.add()
        start = _find(_GIF_BLOCK, data, start)
        if data[start] == ord(";"):
            raise ValueError("The GIF has no image.")
        if data[start] == ord(","):
            break
        if data[start + 1] == _GIF_CONTROL:
            control = _gif_transparency(data, start + 2) or control
        start = _skip_blocks(data, start + 2, counter)
    x, y, columns, rows = struct.unpack_from("<4H", data, start + 1)
    parts = ((0, start_of_blocks), control, (start, len(data)))
    # Pillow enlarges the image until it holds its first one.
    return Header("GIF", max(width, x + columns), max(height, y + rows), parts)


def _gif_transparency(data: bytes, start: int) -> bytes:
    """Return a control block for the transparent colour only: it fills what no image covers."""
    size, flags, _, color = struct.unpack_from("<BBHB", data, start)
    if size < 4 or not flags & 1:
        return b""
    return bytes([ord("!"), _GIF_CONTROL, 4, 1, 0, 0, color, 0])


def _skip_blocks(data: bytes, start: int, counter: PartCounter) -> int:
    """Return the end of blocks that each begin with their length; the last one is empty."""
    while length := data[start]:
        counter.add()
        start += 1 + length
    return start + 1


def _read_bmp(data: bytes, counter: PartCounter) -> Header:
    counter.add()
    (offset, size) = struct.unpack_from("<II", data, 10)
    compression, colors = 0, 0
    if size == 12:
        width, height, _, bits = struct.unpack_from("<4H", data, 18)
    elif size in _BMP_HEADERS:
        width, height, _, bits, compression = struct.unpack_from("<IIHHI", data, 18)
        (colors,) = struct.unpack_from("<I", data, 46)
        if data[25] == 0xFF:
            # The rows are stored from the top, and their number is negative.
            height = (1 << 32) - height
    else:
        raise ValueError(f"The header of a BMP has {size} bytes.")
    if bits <= 8 and colors > MAX_BMP_COLORS:
        raise too_large(
            f"The BMP has {colors} colours; at most {MAX_BMP_COLORS} are read. Save it as a PNG."
        )
    is_run_length = compression in _BMP_RUNS
    end = len(data)
    if is_run_length:
        # Headers and palette, and two bytes for each pixel and row. More are runs without pixels.
        end = min(end, offset + 2 * (width + 1) * height + 4096)
    return Header("BMP", width, height, [(0, end)], is_run_length=is_run_length)


def _find(pattern: re.Pattern[bytes], data: bytes, start: int) -> int:
    """Return where the next part of a file begins.

    Raises:
        ValueError: if there is none soon.
    """
    match = pattern.search(data, start, start + _MAX_GAP_BYTES)
    if match is None:
        raise ValueError(f"No part of the file begins within {_MAX_GAP_BYTES} bytes.")
    return match.start()


_READERS: dict[str, Callable[[bytes, PartCounter], Header]] = {
    "JPEG": _read_jpeg,
    "PNG": _read_png,
    "WEBP": _read_webp,
    "GIF": _read_gif,
    "BMP": _read_bmp,
}
