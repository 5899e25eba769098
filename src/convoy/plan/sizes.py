"""Numbers with units, from words."""

from __future__ import annotations

import argparse
import re

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}


def size(word: str) -> float:
    """Read bytes: `8GB`, `512MiB`, `1e9B`."""
    if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", word.strip(), re.IGNORECASE):
        raise argparse.ArgumentTypeError(f"{word} has no unit; write {word}GB")
    return _read(word, r"(i?)(?:b)?", "a size such as 8GB or 512MiB")


def rate(word: str) -> float:
    """Read bytes per second: `50GB/s`, `25Gbit/s`."""
    bits = re.fullmatch(r"(.*)bit(/s)?", word.strip(), re.IGNORECASE)
    number = _read(bits[1] if bits else word, r"(i?)(?:b)?(?:/s)?", "a speed such as 50GB/s")
    return number / 8 if bits else number


def flops(word: str) -> float:
    """Read floating-point operations per second: `300GFLOPS`, `100T`."""
    return _read(word, r"()(?:flop(?:/?s)?)?", "a speed such as 300GFLOPS")


def seconds(word: str) -> float:
    """Read a time: `20us`, `0.5ms`, `1s`."""
    found = re.fullmatch(r"([\d.]+(?:e-?\d+)?) ?(us|ms|s)", word.strip(), re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"{word!r} is not a time such as 20us")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2].lower()]


def _read(word: str, unit: str, expected: str) -> float:
    pattern = rf"(\d+\.?\d*(?:e[+-]?\d+)?) ?([kmgtp]?){unit}"
    found = re.fullmatch(pattern, word.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{word!r} is not {expected}")
    prefix = _PREFIXES[found[2].lower()]
    if found[3]:
        prefix = 1024.0 ** list(_PREFIXES).index(found[2].lower())
    return float(found[1]) * prefix
