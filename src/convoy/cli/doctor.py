"""`convoy doctor`: prints versions, devices, kernels and problems of the installation."""

import os
import platform
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import convoy
import jax
from convoy import compilation_cache, cpu, devices
from convoy.cpu import threads
from convoy.units import format_bytes, format_count, format_table
from convoy_command.parser import Parser

PACKAGE = "keras-convoy"
# The extras for users; the others are for the development of Convoy.
EXTRAS = {"images": "ImageNet's files", "plot": "curves and charts", "serving": "convoy serve"}
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+).*;.*extra == ['\"](?P<extra>\w+)['\"]")


def make_parser() -> Parser:
    return Parser(
        prog="convoy doctor",
        description=main.__doc__,
        epilog="The exit status is 1 if something is wrong.",
    )


def main(words: Sequence[str]) -> int:
    """Show installed packages, devices, kernels and problems."""
    make_parser().parse_args(words)
    found = list(problems())
    rows = []
    for name, value in (*properties(), *(("problems", problem) for problem in found or ["none"])):
        first, *more = value.splitlines() or [""]
        rows += [(name, first), *(("", line) for line in more)]
    print("\n".join(format_table(rows)))
    return 1 if found else 0


def properties() -> Iterator[tuple[str, str]]:
    """Yield names and values in the order of the output."""
    yield "convoy", f"{convoy.__version__}, in {Path(convoy.__file__).parent}"
    yield "python", platform.python_version()
    for name in ("keras", "jax", "jaxlib", "numpy"):
        yield name, metadata.version(name)
    for extra, purpose in EXTRAS.items():
        lacking = missing(extra)
        how = f"without {', '.join(lacking)}: pip install 'keras-convoy[{extra}]'"
        yield extra, f"{how if lacking else 'installed'} ({purpose})"
    found = jax.devices()
    memory = format_bytes(devices.memory(tuple(found)))
    kind = found[0].device_kind or found[0].platform
    yield "devices", f"{len(found)} x {kind}, {memory} each; {threads.cores()} cores"
    yield "cpu kernels", str(cpu.status()).removeprefix("CPU kernels: ")
    yield "16 bits", _half_precision()
    yield "program cache", _cache()


def problems() -> Iterator[str]:
    """Yield a line for each cause of slow or failing runs, with its remedy."""
    status = cpu.status()
    if jax.default_backend() == "cpu" and not (status.active and status.native):
        yield (
            f"convolutions are slow: {status.why_not}. See docs/cpu-kernels.md, or install again "
            "with a C++ compiler installed"
        )
    folder = compilation_cache.active()
    if folder is not None and not _is_writable(Path(folder)):
        yield (
            f"the program cache {folder} cannot be written, so every run compiles again. Set "
            f"{compilation_cache.VARIABLE} to another folder, or to 0"
        )
    if len(jax.devices()) > threads.cores() and jax.default_backend() == "cpu":
        yield (
            f"{len(jax.devices())} devices share {threads.cores()} cores. Set {devices.VARIABLE} "
            "to fewer for speed"
        )


def missing(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    found = []
    for requirement in metadata.requires(PACKAGE) or ():
        match = _REQUIREMENT.match(requirement)
        if match is None or match["extra"] != extra:
            continue
        try:
            metadata.version(match["name"])
        except metadata.PackageNotFoundError:
            found.append(match["name"])
    return found


def _half_precision() -> str:
    """Describe how the CPU kernels compute in 16 bits."""
    status = cpu.status()
    if not (status.active and status.native):
        return "slow: no native CPU kernels"
    ways = (
        f"{dtype} "
        + ("with instructions" if dtype in status.half_instructions else "computed in float32")
        for dtype in ("bfloat16", "float16")
    )
    return f"{'; '.join(ways)}; precision='auto' is {devices.fastest_precision(jax.devices()[0])!r}"


def _cache() -> str:
    folder = compilation_cache.active()
    if folder is None:
        return "off"
    files = [file for file in Path(folder).glob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return f"{folder} ({format_count(len(files), 'file')}, {format_bytes(size)})"


def _is_writable(folder: Path) -> bool:
    """Return whether a folder, or the nearest one above that exists, is writable."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
