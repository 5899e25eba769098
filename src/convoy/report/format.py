"""Figures as people read them."""

from __future__ import annotations

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def show(value: float | None, unit: str) -> str:
    """Write a value with its unit, in three or four digits."""
    if value is None:
        return "-"
    if unit == "seconds":
        return _seconds(value)
    if unit == "share":
        return f"{value:.1%}"
    if unit == "bytes":
        unit_bytes, name = next(((s, n) for s, n in _BYTES if abs(value) >= s), (1, "B"))
        return f"{value / unit_bytes:.{3 if abs(value) / unit_bytes < 1000 else 4}g} {name}"
    if unit == "count":
        return f"{value:,.0f}"
    size, prefix = next(((s, p) for s, p in _PREFIXES if abs(value) >= s), (1.0, ""))
    if unit == "per second":
        return f"{value:,.4g} /s" if abs(value) < 1e4 else f"{value:,.0f} /s"
    if unit in ("flops", "flops per second"):
        return f"{value / size:.3g} {prefix}FLOP{'/s' if unit != 'flops' else ''}"
    return f"{value:.4g}"


def _seconds(value: float) -> str:
    if abs(value) >= 1 or value == 0:
        return f"{value:.3g} s" if abs(value) < 1000 else f"{value:,.0f} s"
    for size, name in ((1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value * 1e9:.3g} ns"
