"""Quantities as text: formatting and parsing of sizes, rates, durations and counts; tables."""

import re
from collections.abc import Callable, Sequence

_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SHORT_TIMES = ((1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}


def format_value(value: float | None, unit: str) -> str:
    """Return a value with its unit in three or four digits; `-` for `None`.

    Args:
        value: the value.
        unit: `"seconds"`, `"share"`, `"bytes"`, `"count"`, `"per second"`, `"flops"` or
            `"flops per second"`; any other unit is not shown.
    """
    if value is None:
        return "-"
    if unit == "seconds":
        return format_seconds(value)
    if unit == "share":
        return f"{value:.1%}"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "per second":
        return f"{value:,.4g} /s" if abs(value) < 1e4 else f"{value:,.0f} /s"
    if unit in ("flops", "flops per second"):
        scale, prefix = next(((s, p) for s, p in _DECIMAL if abs(value) >= s), (1.0, ""))
        return f"{value / scale:.3g} {prefix}FLOP{'/s' if unit != 'flops' else ''}"
    return f"{value:.4g}"


def format_number(value: float, digits: int = 4) -> str:
    """Return a number rounded to some digits, without exponent: `0.1234`, `12,340`."""
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def format_bytes(value: float) -> str:
    """Return a size in binary units: `1.5 GiB`."""
    scale, unit = next(((s, u) for s, u in _BINARY if abs(value) >= s), (1, "B"))
    return f"{value / scale:.{3 if abs(value) / scale < 1000 else 4}g} {unit}"


def format_seconds(seconds: float, digits: int = 3) -> str:
    """Return a duration in the unit of its size: `724 ms`, `5,223 s`."""
    if abs(seconds) >= 1000:
        return f"{seconds:,.0f} s"
    if abs(seconds) >= 1 or seconds == 0:
        return f"{format_number(seconds, digits)} s"
    scale, unit = next((t for t in _SHORT_TIMES if abs(seconds) >= t[0]), _SHORT_TIMES[-1])
    return f"{format_number(seconds / scale, digits)} {unit}"


def format_clock(seconds: float) -> str:
    """Return hours, minutes and seconds: `0:42`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun: `1 device`, `2 devices`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def format_table(
    rows: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.ljust
) -> list[str]:
    """Return the lines of a table.

    Args:
        rows: cells of each row.
        justify: alignment of cells, `str.ljust` or `str.rjust`.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(justify, row, widths)).rstrip() for row in rows]


def parse_bytes(text: str) -> float:
    """Parse a size: `8GB`, `512MiB`, `1e9B`."""
    if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", text.strip(), re.IGNORECASE):
        raise ValueError(f"{text} has no unit. Pass for example {text}GB.")
    return _parse(text, r"(i?)(?:b)?", "a size", "8GB or 512MiB")


def parse_bytes_per_second(text: str) -> float:
    """Parse a rate: `50GB/s`, `25Gbit/s`."""
    bits = re.fullmatch(r"(.*)bit(/s)?", text.strip(), re.IGNORECASE)
    number = _parse(bits[1] if bits else text, r"(i?)(?:b)?(?:/s)?", "a speed", "50GB/s")
    return number / 8 if bits else number


def parse_flops(text: str) -> float:
    """Parse floating-point operations per second: `300GFLOPS`, `100T`."""
    return _parse(text, r"()(?:flop(?:/?s)?)?", "a speed", "300GFLOPS")


def parse_seconds(text: str) -> float:
    """Parse a duration: `20us`, `0.5ms`, `1s`."""
    found = re.fullmatch(r"([\d.]+(?:e-?\d+)?) ?(us|ms|s)", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"{text!r} is not a time. Pass for example 20us.")
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[found[2].lower()]


def _parse(text: str, unit: str, expected: str, example: str) -> float:
    pattern = rf"(\d+\.?\d*(?:e[+-]?\d+)?) ?([kmgtp]?){unit}"
    found = re.fullmatch(pattern, text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise ValueError(f"{text!r} is not {expected}. Pass for example {example}.")
    prefix = found[2].lower()
    scale = 1024.0 ** list(_PREFIXES).index(prefix) if found[3] else _PREFIXES[prefix]
    return float(found[1]) * scale
