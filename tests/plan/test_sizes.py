import argparse

import pytest
from convoy.plan import sizes


@pytest.mark.parametrize(
    ("read", "word", "value"),
    [
        (sizes.size, "8GB", 8e9),
        (sizes.size, "512MiB", 512 * 2**20),
        (sizes.size, "1.5e9B", 1.5e9),
        (sizes.size, "16g", 16e9),
        (sizes.rate, "50GB/s", 50e9),
        (sizes.rate, "25Gbit/s", 3.125e9),
        (sizes.flops, "300GFLOPS", 300e9),
        (sizes.flops, "100T", 100e12),
        (sizes.seconds, "20us", 20e-6),
        (sizes.seconds, "0.5 ms", 5e-4),
    ],
)
def test_words_become_numbers(read, word, value):
    assert read(word) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "word"),
    [
        (sizes.size, "much"),
        (sizes.size, "0GB"),
        (sizes.size, "8GB/s"),
        (sizes.rate, "8 apples"),
        (sizes.flops, "-3T"),
        (sizes.seconds, "20"),
    ],
)
def test_other_words_are_refused_with_an_example(read, word):
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a (size|speed|time) such as"):
        read(word)


@pytest.mark.parametrize("word", ["8", "1.5", "16e9"])
def test_a_size_needs_a_unit(word):
    with pytest.raises(argparse.ArgumentTypeError, match=f"{word} has no unit; write {word}GB"):
        sizes.size(word)
