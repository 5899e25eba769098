"""Installed versions, and the versions of Keras and JAX that Convoy is tested with."""

import re
import warnings
from importlib import metadata
from typing import NamedTuple


class VersionRange(NamedTuple):
    """A range of minor versions, both ends included."""

    first: str
    last: str

    def includes(self, version: str) -> bool:
        return _minor(self.first) <= _minor(version) <= _minor(self.last)

    def __str__(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


# Neither is pinned in pyproject.toml: most releases change nothing that Convoy uses. But
# `keras_bridge` uses private names of Keras, and `cpu` replaces lowering rules of JAX.
TESTED = {"keras": VersionRange("3.15", "3.15"), "jax": VersionRange("0.10", "0.12")}

# The packages whose versions are recorded in checkpoints, reports and benchmark results.
RECORDED = ("keras-convoy", "keras", "jax", "jaxlib", "numpy")


def installed_versions() -> dict[str, str]:
    """Return the installed versions of Convoy and of the packages that determine its results."""
    return {name: metadata.version(name) for name in RECORDED}


def warn_of_untested() -> None:
    """Warn, once per process, if the installed Keras or JAX is outside of the tested range."""
    installed = {name: metadata.version(name) for name in TESTED}
    if all(tested.includes(installed[name]) for name, tested in TESTED.items()):
        return
    warnings.warn(
        f"Convoy is tested with {_listed(TESTED)}, but {_listed(installed)} are installed. It uses "
        "internals of both. If something fails, install a tested version.",
        stacklevel=4,  # the line that imports Convoy
    )


def _minor(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def _listed(versions: dict[str, VersionRange] | dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())
