"""The environment variables `TF_POPLAR_FLAGS` and `POPLAR_ENGINE_OPTIONS`."""

import difflib
import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from convoy import compilation_cache
from convoy.ipu import notice

FLAGS = "TF_POPLAR_FLAGS"
ENGINE_OPTIONS = "POPLAR_ENGINE_OPTIONS"

_WITH_EFFECT = ("executable_cache_path", "use_ipu_model")
_KINDS: dict[str, Literal["switch", "number", "word"]] = {
    "disable_poplar_version_check": "switch",
    "dump_schedule_as_dot": "switch",
    "executable_cache_path": "word",
    "fallback_scheduler": "switch",
    "help": "switch",
    "ipu_model_tiles": "number",
    "log_cycle_count": "number",
    "max_compilation_threads": "number",
    "max_infeed_threads": "number",
    "null_data_feed": "switch",
    "on_demand_device_poll_time": "number",
    "on_demand_device_timeout": "number",
    "show_progress_bar": "word",
    "sync_replica_start": "switch",
    "synthetic_data_categories": "word",
    "synthetic_data_initializer": "word",
    "tensor_map_file_path": "word",
    "use_ipu_model": "switch",
    "use_synthetic_data": "switch",
    "while_loop_brute_force_max_trip_count": "number",
}
_IGNORED = sorted(set(_KINDS) - {*_WITH_EFFECT, "help"})
_REPORTS = ("autoReport.all", "autoReport.outputExecutionProfile", "autoReport.outputGraphProfile")


@dataclass(frozen=True)
class Flags:
    """The flags of `TF_POPLAR_FLAGS` that have an effect.

    Attributes:
        is_simulated: whether scripts see a simulated IPU.
        cache: folder of compiled programs; `None` is the default one.
    """

    is_simulated: bool = False
    cache: Path | None = None


def read_flags() -> Flags:
    """Return the flags of `TF_POPLAR_FLAGS`; log once those that are unknown or ignored.

    Raises:
        ValueError: if a flag has a value of the wrong type.
    """
    given = dict(_parse(word) for word in shlex.split(os.environ.get(FLAGS, "")))
    if "help" in given:
        used, ignored = (", ".join(f"--{n}" for n in names) for names in (_WITH_EFFECT, _IGNORED))
        notice.once(f"{FLAGS} is read for {used}. Accepted without effect: {ignored}.")
    for name in sorted(set(given) - set(_KINDS)):
        near = difflib.get_close_matches(name, _KINDS, 1)
        advice = f"Did you mean --{near[0]}?" if near else "Leave it out."
        notice.once(f"{FLAGS} has the unknown flag --{name}, which is ignored. {advice}")
    is_on = {name: value != "false" for name, value in given.items()}
    notice.no_effect(FLAGS, {f"--{name}": is_on.get(name) for name in _IGNORED})
    cache = given.get("executable_cache_path")
    return Flags(is_on.get("use_ipu_model", False), Path(cache) if cache else None)


def apply_flags() -> None:
    """Read `TF_POPLAR_FLAGS`, and use its folder for compiled programs."""
    flags = read_flags()
    if flags.cache is not None:
        compilation_cache.use(flags.cache)


def _parse(word: str) -> tuple[str, str]:
    name, _, value = word.removeprefix("--").partition("=")
    kind = _KINDS.get(name)
    if kind == "switch":
        if value.lower() not in ("", "true", "false"):
            raise ValueError(f"{FLAGS} has {word}. Write --{name}, or --{name}=false.")
        return name, value.lower() or "true"
    if kind == "number" and not value.removeprefix("-").isdigit():
        raise ValueError(f"{FLAGS} has {word}. Write --{name}= and a whole number.")
    if kind == "word" and not value:
        raise ValueError(f"{FLAGS} has {word}. Write --{name}= and a value.")
    return name, value


def report_folder(engine_options: dict[str, str] | None = None) -> Path | None:
    """Return the folder for reports, if reports are enabled.

    Args:
        engine_options: `compilation_poplar_options` of an `IPUConfig`. The options in
            `POPLAR_ENGINE_OPTIONS` override them.

    Raises:
        ValueError: if the variable is not JSON.
    """
    options = dict(engine_options or {})
    text = os.environ.get(ENGINE_OPTIONS, "")
    if text:
        try:
            options |= json.loads(text)
        except (ValueError, TypeError):
            raise ValueError(
                f"{ENGINE_OPTIONS}={text!r} is not JSON. Set it to JSON such as "
                '{"autoReport.all":"true"}.'
            ) from None
    if not any(str(options.get(name, "")).lower() == "true" for name in _REPORTS):
        return None
    return Path(options.get("autoReport.directory", "."))
