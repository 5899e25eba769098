"""Record files and examples, bit for bit as others write and read them."""

import gzip
import struct
import zlib

import pytest
from convoy.data import records
from convoy.data.records import DamagedDataError, crc32c, masked_checksum

DATA = [b"first", b"", bytes(range(256)) * 3]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "some"
    path.write_bytes(b"".join(records.frame(data) for data in DATA))
    return path


def test_the_checksum_is_crc32c_turned_and_shifted():
    assert crc32c(b"123456789") == 0xE3069283
    for data in DATA:
        plain = crc32c(data)
        turned = (plain >> 15 | plain << 17) + 0xA282EAD8 & 0xFFFFFFFF
        assert masked_checksum(data) == turned


def test_a_record_is_length_and_data_with_a_checksum_each(file):
    whole = file.read_bytes()
    assert struct.unpack("<Q", whole[:8])[0] == 5
    assert struct.unpack("<I", whole[8:12])[0] == masked_checksum(whole[:8])
    assert whole[12:17] == b"first"
    assert struct.unpack("<I", whole[17:21])[0] == masked_checksum(b"first")


def test_what_is_read_is_what_was_written(file):
    assert list(records.read_all(file)) == DATA
    places, problem = records.scan(file)
    assert places.tolist() == [[12, 5], [33, 0], [49, 768]]
    assert not problem


def test_a_changed_byte_is_found(file):
    whole = file.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        file.write_bytes(damaged)
        with pytest.raises(DamagedDataError, match=r"some, record \d"):
            list(records.read_all(file))


@pytest.mark.parametrize("length", [3, 14, 25, 40, 100, 800])
def test_a_file_cut_short_has_the_records_before(file, length):
    file.write_bytes(file.read_bytes()[:length])
    places, problem = records.scan(file)
    assert "the file ends within its" in problem
    expected = [place for place in [[12, 5], [33, 0], [49, 768]] if sum(place) + 4 <= length]
    assert places.tolist() == expected


@pytest.fixture(params=["isal", "zlib"])
def compressed(tmp_path, request, monkeypatch):
    if request.param == "zlib":
        monkeypatch.setattr(records, "_decompression", lambda: (gzip.open, zlib.error))
    path = tmp_path / "some.gz"
    records.write_file(path, DATA, compressed=True)
    return path


def test_a_compressed_file_is_read_as_the_other(file, compressed, tmp_path):
    assert gzip.decompress(compressed.read_bytes()) == file.read_bytes()
    assert list(records.read_all(compressed)) == DATA
    records.write_file(tmp_path / "plain", DATA)
    assert (tmp_path / "plain").read_bytes() == file.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"some", "some.gz", "plain"}


def test_a_record_that_begins_like_gzip_is_not_taken_for_it(tmp_path):
    path = tmp_path / "plain"
    records.write_file(path, [bytes(0x8B1F)])
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert [len(data) for data in records.read_all(path)] == [0x8B1F]


def test_a_compressed_file_that_is_damaged_or_cut_short_is_named(compressed):
    whole = compressed.read_bytes()
    for damaged in (whole[:-20], whole[:40], whole[:-30] + b"\xff" * 8 + whole[-22:]):
        compressed.write_bytes(damaged)
        with pytest.raises(DamagedDataError, match=r"some\.gz, record \d: "):
            list(records.read_all(compressed))


@pytest.mark.parametrize(
    ("length", "problem"),
    [(5, "ends within its length"), (25, "ends within its length"), (100, "ends within its data")],
)
def test_what_is_cut_short_before_it_is_compressed_is_found_too(file, tmp_path, length, problem):
    path = tmp_path / "short.gz"
    path.write_bytes(gzip.compress(file.read_bytes()[:length]))
    with pytest.raises(DamagedDataError, match=problem):
        list(records.read_all(path))


def test_a_changed_byte_inside_of_a_compressed_file_is_found(file, tmp_path):
    path = tmp_path / "changed.gz"
    for place in range(len(DATA[0]) + 16):
        damaged = bytearray(file.read_bytes())
        damaged[place] ^= 0x10
        path.write_bytes(gzip.compress(damaged))
        with pytest.raises(DamagedDataError, match=r"changed\.gz, record 0"):
            list(records.read_all(path))
