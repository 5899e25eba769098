"""An optimizer's settings as they were compiled, and how two of them differ.

They are taken before the first step of a run, since callbacks change the learning rate later. Some
settings are values that a checkpoint brings back, such as a learning rate that is a number; of all
others, which are part of the compiled program, those of the model count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

Settings = dict[str, Any]

_IN_CHECKPOINTS = ("learning_rate", "initial_scale")
"""Where a variable begins; Keras's optimizers have no others that settings decide."""

_NOT_COMPARED = ("name", "module", "registered_name", "build_config")


def describe(optimizer: keras.optimizers.Optimizer) -> Settings:
    """Return the settings of an optimizer by name, such as `{"learning_rate": 0.001}`.

    Those of an optimizer or a schedule inside have its name in front, as in
    `"learning_rate.decay_steps"`. An optimizer that cannot tell its settings has none.
    """
    try:
        return dict(_flat("", optimizer.get_config()))
    except Exception:  # whatever the `get_config` of somebody's own optimizer raises
        return {}


def dropped(now: Settings, then: Settings, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Say which settings have no effect, since a checkpoint brings other values back.

    Args:
        now: those of the model that goes on.
        then: those with which the run began.
        arrays: the values in the checkpoint. A model that was trained in the same process has
            some of them already, which are not what it was compiled with.
    """
    return [
        f"{name} {_say(now[name])} (the run began with {_say(then[name])})"
        for name in _differing(now, then)
        if _is_in_checkpoints(name) and now[name] not in _values(name, arrays)
    ]


def changed(now: Settings, then: Settings) -> list[str]:
    """Say which settings have an effect from now on, and had other values before."""
    return [
        f"{name} {_say(now[name])} (it was {_say(then[name])})"
        for name in _differing(now, then)
        if not _is_in_checkpoints(name)
    ]


def of_resumed(now: Settings, then: Settings) -> Settings:
    """Return what a run that goes on is made with: some settings are those of its beginning."""
    own = {name: value for name, value in now.items() if not _is_in_checkpoints(name)}
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
            inside = value.get("config")
            yield from _flat(f"{prefix}{name}.", {"class_name": value.get("class_name")})
            yield from _flat(f"{prefix}{name}.", inside if isinstance(inside, Mapping) else {})


def _plain(value: Any) -> Any:
    """Turn what JSON does not know into what it will be read as."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def _values(setting: str, arrays: Mapping[str, np.ndarray]) -> list[float]:
    names = [name for name in arrays if name.startswith("optimizer/")]
    wanted = setting.split(".")[-1]
    return [float(arrays[name]) for name in names if name.split("/")[-1] == wanted]


def _differing(now: Settings, then: Settings) -> list[str]:
    return [name for name, value in now.items() if name in then and then[name] != value]


def _is_in_checkpoints(name: str) -> bool:
    return name.split(".")[-1] in _IN_CHECKPOINTS


def _say(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
