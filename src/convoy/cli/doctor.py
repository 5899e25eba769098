"""`convoy doctor`: what is installed, which devices and kernels there are, and what is wrong."""

from __future__ import annotations

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
from convoy_command.parser import Parser

PACKAGE = "keras-convoy"
# Those that are for users; the others are for work on Convoy itself.
EXTRAS = {"images": "ImageNet's files", "plot": "curves and charts", "serving": "convoy serve"}
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+).*;.*extra == ['\"](?P<extra>\w+)['\"]")


def make_parser() -> Parser:
    return Parser(
        prog="convoy doctor",
        description=main.__doc__,
        epilog="The exit status is 1 if something is wrong.",
    )


def main(words: Sequence[str]) -> int:
    """Show what is installed, which devices and kernels there are, and what is wrong."""
    make_parser().parse_args(words)
    rows = list(what_there_is())
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        first, *more = value.splitlines() or [""]
        print(f"{name:<{width}}  {first}")
        for line in more:
            print(f"{'':<{width}}  {line}")
    wrong = list(what_is_wrong())
    for problem in wrong:
        print(f"{'problems':<{width}}  {problem}")
    if not wrong:
        print(f"{'problems':<{width}}  none")
    return 1 if wrong else 0


def what_there_is() -> Iterator[tuple[str, str]]:
    """Return names and values, in the order in which they are shown."""
    yield "convoy", f"{convoy.__version__}, in {Path(convoy.__file__).parent}"
    yield "python", platform.python_version()
    for name in ("keras", "jax", "jaxlib", "numpy"):
        yield name, metadata.version(name)
    for extra, purpose in EXTRAS.items():
        lacking = missing(extra)
        how = f"without {', '.join(lacking)}: pip install {' '.join(lacking)}"
        yield extra, f"{how if lacking else 'installed'} ({purpose})"
    found = jax.devices()
    memory = devices.memory(tuple(found)) / 1e9
    kind = found[0].device_kind or found[0].platform
    yield "devices", f"{len(found)} x {kind}, {memory:.1f} GB each; {threads.cores()} cores"
    yield "cpu kernels", str(cpu.status()).removeprefix("CPU kernels: ")
    yield "program cache", _cache()


def what_is_wrong() -> Iterator[str]:
    """Return a line for each thing that makes runs slower or fail, and what to do."""
    status = cpu.status()
    if jax.default_backend() == "cpu" and not (status.active and status.native):
        yield (
            f"convolutions are slow: {status.why_not}. See docs/cpu-kernels.md, or install again "
            "where there is a C++ compiler"
        )
    folder = compilation_cache.active()
    if folder is not None and not _is_writable(Path(folder)):
        yield (
            f"the program cache {folder} cannot be written, so every run compiles anew. Set "
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


def _cache() -> str:
    folder = compilation_cache.active()
    if folder is None:
        return "off"
    files = [file for file in Path(folder).glob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return f"{folder} ({len(files)} files, {size / 1e6:.1f} MB)"


def _is_writable(folder: Path) -> bool:
    """Say whether files can be made in a folder, or in the one where it would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
