"""The variable `TF_POPLAR_FLAGS`: what a script's surroundings say, beside its configuration."""

from __future__ import annotations

import difflib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from convoy import compilation_cache
from convoy.ipu import notice

VARIABLE = "TF_POPLAR_FLAGS"

_SWITCHES = {
    "disable_poplar_version_check",
    "dump_schedule_as_dot",
    "fallback_scheduler",
    "help",
    "null_data_feed",
    "sync_replica_start",
    "use_ipu_model",
    "use_synthetic_data",
}
_NUMBERS = {
    "ipu_model_tiles",
    "log_cycle_count",
    "max_compilation_threads",
    "max_infeed_threads",
    "on_demand_device_poll_time",
    "on_demand_device_timeout",
    "while_loop_brute_force_max_trip_count",
}
_WORDS = {
    "executable_cache_path",
    "show_progress_bar",
    "synthetic_data_categories",
    "synthetic_data_initializer",
    "tensor_map_file_path",
}
_KNOWN = _SWITCHES | _NUMBERS | _WORDS
_HEEDED = {"executable_cache_path", "help", "use_ipu_model"}


@dataclass(frozen=True)
class Flags:
    """What the variable asks for that has a meaning here.

    Attributes:
        simulates: whether scripts are told that an IPU is simulated.
        cache: where compiled programs are kept; `None` is the usual place.
    """

    simulates: bool = False
    cache: Path | None = None


def read() -> Flags:
    """Return what the variable says; name once what it says in vain.

    Raises:
        ValueError: if a flag has a value that it cannot have.
    """
    given = dict(_parse(word) for word in shlex.split(os.environ.get(VARIABLE, "")))
    if "help" in given:
        heeded = ", ".join(f"--{name}" for name in sorted(_HEEDED - {"help"}))
        others = ", ".join(f"--{name}" for name in sorted(_KNOWN - _HEEDED))
        notice.once(f"{VARIABLE} is heard for {heeded}. Accepted without effect: {others}.")
    for name in sorted(set(given) - _KNOWN):
        near = difflib.get_close_matches(name, _KNOWN, 1)
        advice = f"Did you mean --{near[0]}?" if near else "Leave it out."
        notice.once(f"{VARIABLE} has a flag --{name}, which is unknown, and ignored. {advice}")
    idle = set(given) & (_KNOWN - _HEEDED)
    notice.without_effect([f"--{name}" for name in idle if _is_on(given[name])], VARIABLE)
    cache = given.get("executable_cache_path")
    return Flags(
        simulates=_is_on(given.get("use_ipu_model", "false")),
        cache=Path(cache) if cache else None,
    )


def heed() -> None:
    """Read the variable, and keep compiled programs where it says."""
    flags = read()
    if flags.cache is not None:
        compilation_cache.use(flags.cache)


def _parse(word: str) -> tuple[str, str]:
    name, has_value, value = word.removeprefix("--").partition("=")
    if name in _SWITCHES:
        if value.lower() not in ("", "true", "false"):
            raise ValueError(f"{VARIABLE} has {word}. Write --{name}, or --{name}=false.")
        return name, value.lower() or "true"
    if name in _NUMBERS and not value.removeprefix("-").isdigit():
        raise ValueError(f"{VARIABLE} has {word}. Write --{name}= and a whole number.")
    if name in _WORDS and not (has_value and value):
        raise ValueError(f"{VARIABLE} has {word}. Write --{name}= and a value.")
    return name, value


def _is_on(value: str) -> bool:
    return value != "false"
