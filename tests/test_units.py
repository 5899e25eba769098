import pytest
from convoy.units import (
    format_bytes,
    format_clock,
    format_count,
    format_number,
    format_seconds,
    format_table,
    format_value,
    parse_bytes,
    parse_bytes_per_second,
    parse_flops,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("parse", "word", "value"),
    [
        (parse_bytes, "8GB", 8e9),
        (parse_bytes, "512MiB", 512 * 2**20),
        (parse_bytes, "1.5e9B", 1.5e9),
        (parse_bytes, "16g", 16e9),
        (parse_bytes_per_second, "50GB/s", 50e9),
        (parse_bytes_per_second, "25Gbit/s", 3.125e9),
        (parse_flops, "300GFLOPS", 300e9),
        (parse_flops, "100T", 100e12),
        (parse_seconds, "20us", 20e-6),
        (parse_seconds, "0.5 ms", 5e-4),
    ],
)
def test_words_become_numbers(parse, word, value):
    assert parse(word) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "word"),
    [
        (parse_bytes, "much"),
        (parse_bytes, "0GB"),
        (parse_bytes, "8GB/s"),
        (parse_bytes_per_second, "8 apples"),
        (parse_flops, "-3T"),
        (parse_seconds, "20"),
    ],
)
def test_other_words_are_refused_with_an_example(parse, word):
    with pytest.raises(ValueError, match=r"is not a (size|speed|time)\. Pass for example \d"):
        parse(word)


@pytest.mark.parametrize("word", ["8", "1.5", "16e9"])
def test_a_size_needs_a_unit(word):
    with pytest.raises(ValueError, match=rf"{word} has no unit\. Pass for example {word}GB"):
        parse_bytes(word)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.012345, "0.01235"), (24.781, "24.78"), (999.96, "1,000"), (113_123.0, "113,100")],
)
def test_numbers_have_four_digits_and_no_exponent(value, shown):
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0012, "1.2 ms"), (0.7241, "724.1 ms"), (1.0, "1 s"), (522.3, "522.3 s"), (5223, "5,223 s")],
)
def test_durations_are_in_a_unit_of_their_size(seconds, shown):
    assert format_seconds(seconds, digits=4) == shown


def test_a_count_of_one_is_singular():
    counts = [format_count(n, "replica") for n in (0, 1, 2)]
    assert counts == ["0 replicas", "1 replica", "2 replicas"]


def test_a_clock_has_hours_only_if_needed():
    assert [format_clock(s) for s in (0, 42, 62, 3723)] == ["0:00", "0:42", "1:02", "1:02:03"]


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB")]
)
def test_sizes_are_in_binary_units(size, shown):
    assert format_bytes(size) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "seconds", "-"),
        (2.5e-6, "seconds", "2.5 µs"),
        (0.1234, "share", "12.3%"),
        (12345.6, "count", "12,346"),
        (123.456, "per second", "123.5 /s"),
        (20000.0, "per second", "20,000 /s"),
        (3.21e9, "flops", "3.21 GFLOP"),
        (3.21e9, "flops per second", "3.21 GFLOP/s"),
        (1.5, "", "1.5"),
    ],
)
def test_values_are_shown_with_their_unit(value, unit, shown):
    assert format_value(value, unit) == shown


def test_the_columns_of_a_table_are_aligned():
    rows = [("name", "n"), ("a", "10")]
    assert format_table(rows) == ["name  n", "a     10"]
    assert format_table(rows, str.rjust) == ["name   n", "   a  10"]
