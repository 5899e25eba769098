"""Resuming a run: checks, the state that is saved, and differences from the earlier options."""

from pathlib import Path
from typing import Any

import convoy
from convoy.checkpoint.folder import Folder
from convoy.checkpoint.policy import Interval
from convoy.configuration import ConfigurationError, read, short_flag
from convoy.train.flags import Options
from convoy.train.graphcore_flags import GraphcoreOptions
from convoy.train.recipe import as_recipe, read_recipe
from convoy.train.run_folder import RUN, RunFolder
from convoy.train.run_settings import RunSettings

NEVER = "never"


def check_resumable(options: Options) -> None:
    """Check `--state-every` and `--resume`.

    Raises:
        ValueError: if the interval is not valid, or the run cannot be resumed.
    """
    if options.state_every != NEVER:
        try:
            Interval(_interval(options.state_every, 1))
        except ValueError:
            raise ValueError(
                f"--state-every {options.state_every}: pass epoch, a number of weight updates, a "
                "time such as 30s, 10m or 1h, or never."
            ) from None
    if options.resume and options.output_dir is None:
        raise ValueError("--resume continues the run in a folder. Pass --output-dir too.")
    if options.resume and options.state_every == NEVER:
        raise ValueError(
            "--resume needs a saved state, but --state-every never saves none. Leave one of them "
            "out."
        )


def check_folder(options: Options, folder: RunFolder) -> None:
    """Check that a new run does not overwrite an earlier one in the same folder.

    Raises:
        ValueError: if there is one, and `--resume` was not passed.
    """
    if options.training and not options.resume and Folder(folder.state).positions():
        raise ValueError(
            f"{folder.path} has a run that can be resumed. Pass --resume to continue it, or "
            "another --output-dir."
        )


def differences(options: Options, folder: RunFolder) -> list[str]:
    """Return a note about the flags that differ from those of the resumed run, if any do."""
    earlier, now = _recipe_of(folder.recipe), as_recipe(options)
    if not options.resume or not earlier:
        return []
    changed = [
        f"{short_flag(GraphcoreOptions, name)} {now.get(name)} (it was {earlier.get(name)})"
        for name in sorted({*earlier, *now})
        if earlier.get(name) != now.get(name)
    ]
    return [f"The run resumes with other flags: {', '.join(changed)}."] if changed else []


def resume_position(settings: RunSettings, folder: RunFolder) -> str:
    """Return a line about the point from which a run resumes; empty without `--resume`."""
    if not settings.options.resume:
        return ""
    positions = Folder(folder.state).positions()
    if not positions:
        return f"new run             {folder.path} has no run to resume"
    epoch, step = positions[-1]
    done = epoch * settings.events.keras_epoch + step // settings.batch.gradient_accumulation
    if done >= settings.events.updates:
        return "resumed             training is complete: its checkpoints are validated again"
    return f"resumed             after {done} of {settings.events.updates} weight updates"


def make_checkpoints(settings: RunSettings, folder: RunFolder) -> convoy.Checkpoints | None:
    """Return the callback that saves and restores the state of a run, if it is enabled."""
    options = settings.options
    if options.state_every == NEVER:
        return None
    return convoy.Checkpoints(
        folder.state,
        _interval(options.state_every, settings.batch.gradient_accumulation),
        keep=2,
        resume=options.resume,
        recipe=as_recipe(options),
    )


def _interval(state_every: str, steps_per_update: int) -> int | str:
    return int(state_every) * steps_per_update if state_every.isdecimal() else state_every


def _recipe_of(path: Path) -> dict[str, Any]:
    """Return the recipe of the earlier run, with current flag names; empty if there is none."""
    try:
        return as_recipe(read(GraphcoreOptions, read_recipe(RUN, path)))
    except ConfigurationError:
        return {}
