"""`--resume`: what a run needs to know of the one that it goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import convoy
from convoy.checkpoint.folder import Folder
from convoy.checkpoint.policy import Interval
from convoy.configuration import ConfigurationError, read
from convoy.train.graphcore_options import GraphcoreOptions
from convoy.train.options import Options
from convoy.train.recipe import as_recipe, read_recipe
from convoy.train.run_folder import RUN, RunFolder
from convoy.train.run_settings import RunPlan

NEVER = "never"


def check_resumable(options: Options) -> None:
    """Refuse what cannot be resumed, or is not a rhythm of checkpoints.

    Raises:
        ValueError: in one line.
    """
    if options.state_every != NEVER:
        try:
            Interval(_every(options.state_every, 1))
        except ValueError:
            raise ValueError(
                f"--state-every {options.state_every}: pass epoch, a number of weight updates, a "
                "time such as 30s, 10m or 1h, or never."
            ) from None
    if options.resume and options.output_dir is None:
        raise ValueError("--resume goes on with the run in a folder. Pass --output-dir too.")
    if options.resume and options.state_every == NEVER:
        raise ValueError("--resume needs what --state-every never does not write.")


def check_folder(options: Options, folder: RunFolder) -> None:
    """Refuse to mix a run with an earlier one in the same folder.

    Raises:
        ValueError: if there is one that was not asked for.
    """
    if options.training and not options.resume and Folder(folder.state).positions():
        raise ValueError(
            f"{folder.path} has a run that can be resumed. Pass --resume to go on with it, or "
            "another --output-dir."
        )


def differences(options: Options, folder: RunFolder) -> list[str]:
    """Say which flags are not what they were in the run that is resumed."""
    earlier, now = _earlier(folder.recipe), as_recipe(options)
    if not options.resume or not earlier:
        return []
    changed = [
        f"--{name} {now.get(name)} (it was {earlier.get(name)})"
        for name in sorted({*earlier, *now})
        if earlier.get(name) != now.get(name)
    ]
    return [f"The run resumes with other flags: {', '.join(changed)}."] if changed else []


def where_it_goes_on(plan: RunPlan, folder: RunFolder) -> str:
    """Say after how much of the training a run goes on; nothing if it begins."""
    positions = Folder(folder.state).positions() if plan.options.resume else []
    if not positions:
        return ""
    epoch, step = positions[-1]
    done = epoch * plan.events.keras_epoch + step // plan.batch.accumulation
    if done >= plan.events.updates:
        return "training is complete: its checkpoints are validated again"
    return f"after {done} of {plan.events.updates} weight updates"


def make_checkpoints(plan: RunPlan, folder: RunFolder) -> convoy.Checkpoints | None:
    """Return what writes the state of a run, and brings it back; `None` if nothing should."""
    options = plan.options
    if options.state_every == NEVER or options.compile_only:
        return None
    return convoy.Checkpoints(
        folder.state,
        _every(options.state_every, plan.batch.accumulation),
        keep=2,
        resume=options.resume,
        recipe=as_recipe(options),
    )


def _every(asked: str, steps_per_update: int) -> int | str:
    return int(asked) * steps_per_update if asked.isdecimal() else asked


def _earlier(recipe: Path) -> Mapping[str, Any]:
    """Return the recipe of the earlier run, with today's names of flags; empty if there is none."""
    try:
        return as_recipe(read(GraphcoreOptions, read_recipe(RUN, recipe)))
    except ConfigurationError:
        return {}
