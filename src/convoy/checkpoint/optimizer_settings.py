"""Settings of an optimizer when it was compiled, and the differences between two runs.

The settings are recorded before a run's first step, since callbacks change the learning rate later.
Some settings are variables that a checkpoint restores, such as a constant learning rate. The others
are part of the compiled program; for them, the values of the resumed model apply.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

Settings = dict[str, Any]

# The settings that initialise variables; Keras's optimizers have no others.
_RESTORED = ("learning_rate", "initial_scale")
_NOT_COMPARED = ("name", "module", "registered_name", "build_config")


def describe(optimizer: keras.optimizers.Optimizer) -> Settings:
    """Return the settings of an optimizer by name, such as `{"learning_rate": 0.001}`.

    Names of nested optimizers and schedules have a prefix, as in `"learning_rate.decay_steps"`. An
    optimizer without a working `get_config` has no settings.
    """
    try:
        return dict(_flat("", optimizer.get_config()))
    except Exception:  # A user's `get_config` can raise anything.
        return {}


def ignored(now: Settings, then: Settings, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Return descriptions of changed settings that have no effect: the checkpoint restores them.

    Args:
        now: the settings of the resumed model.
        then: the settings at the beginning of the run.
        arrays: the values in the checkpoint. A model that was trained in the same process already
            has some of them; these are not changes.
    """
    return [
        f"{name} {_format(now[name])} (the run began with {_format(then[name])})"
        for name in _changed(now, then)
        if _is_restored(name) and now[name] not in _values(name, arrays)
    ]


def changed(now: Settings, then: Settings) -> list[str]:
    """Return descriptions of changed settings that have an effect from now on."""
    return [
        f"{name} {_format(now[name])} (previously {_format(then[name])})"
        for name in _changed(now, then)
        if not _is_restored(name)
    ]


def of_resumed(now: Settings, then: Settings) -> Settings:
    """Return the settings of a resumed run: restored ones are those of its beginning."""
    own = {name: value for name, value in now.items() if not _is_restored(name)}
    return own | {name: then[name] for name in now if name in then and name not in own}


def _flat(prefix: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if name in _NOT_COMPARED:
            continue
        if not isinstance(value, Mapping):
            plain = _plain(value)
            parts = plain if isinstance(plain, list) else [plain]
            if all(isinstance(part, bool | int | float | str | None) for part in parts):
                yield prefix + name, plain
        elif value.get("class_name") != "__lambda__":
            nested = value.get("config")
            yield from _flat(f"{prefix}{name}.", {"class_name": value.get("class_name")})
            yield from _flat(f"{prefix}{name}.", nested if isinstance(nested, Mapping) else {})


def _plain(value: Any) -> Any:
    """Convert a value to the one that is read back from JSON."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def _values(setting: str, arrays: Mapping[str, np.ndarray]) -> list[float]:
    names = [name for name in arrays if name.startswith("optimizer/")]
    wanted = setting.split(".")[-1]
    return [float(arrays[name]) for name in names if name.split("/")[-1] == wanted]


def _changed(now: Settings, then: Settings) -> list[str]:
    return [name for name, value in now.items() if name in then and then[name] != value]


def _is_restored(name: str) -> bool:
    return name.split(".")[-1] in _RESTORED


def _format(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
