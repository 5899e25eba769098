"""Persistent cache of compiled programs, so that a second run starts at once."""

import hashlib
import os
import platform
from pathlib import Path

import jax
from convoy.environment import is_off
from jax.experimental.compilation_cache import compilation_cache

VARIABLE = "CONVOY_COMPILATION_CACHE"


def enable() -> None:
    """Turn JAX's persistent cache on, unless the user has chosen a folder or turned it off."""
    if is_off(VARIABLE) or active():
        return
    chosen = os.environ.get(VARIABLE, "")
    jax.config.update("jax_compilation_cache_dir", str(Path(chosen) if chosen else folder()))


def use(folder: Path) -> None:
    """Use another folder for the cache from now on, unless the variable names one."""
    if os.environ.get(VARIABLE) or active() == str(folder):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # JAX opens the folder once, before the first program


def folder() -> Path:
    """Return the user's cache folder for programs that are compiled for this CPU model.

    A compiled program contains instructions that another CPU may lack, and machines may share a
    home folder.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "convoy" / "programs" / _cpu_identity()


def _cpu_identity() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kind = [line for line in lines if line.startswith(("model name", "flags", "Features"))][:2]
    text = "\n".join([platform.machine(), platform.processor(), *kind])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def active() -> str | None:
    """Return the folder of JAX's persistent cache, or `None`."""
    return jax.config.jax_compilation_cache_dir or None  # type: ignore[attr-defined]
