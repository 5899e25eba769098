"""How to run a configuration: the command, and the lines of a recipe."""

from __future__ import annotations

import math
import shlex
from typing import Any

import yaml
from convoy.plan.machine import Machine
from convoy.plan.predict import Prediction
from convoy.plan.profile import Profile


def flags(prediction: Prediction, profile: Profile, common: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of `convoy train` that make a configuration.

    Args:
        prediction: of the configuration.
        profile: with the names of layers.
        common: model, data set and the like.
    """
    one = prediction.configuration
    found = common | {
        "num-replicas": one.replicas,
        "micro-batch-size": one.micro_batch,
        "gradient-accumulation": one.accumulation,
    }
    if one.stages > 1:
        found["pipeline-splits"] = [profile.names[cut] for cut in prediction.cuts]
        found["pipeline-schedule"] = one.schedule
    elif one.recompute:
        # Stages on one device: the model stays in one piece, and forgets activations.
        found["pipeline-splits"] = ["auto", "2"]
        found["device-mapping"] = [0, 0]
    if one.recompute:
        found["activation-checkpointing"] = True
    return found


def command(prediction: Prediction, flags: dict[str, Any], machine: Machine) -> str:
    """Return the command line, for one host or for several."""
    words: list[str] = []
    for name, value in flags.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += [f"--{name}", *map(str, values)]
    one = prediction.configuration
    if one.devices <= machine.per_host:
        return f"convoy train {shlex.join(words)}"
    on_a_host = machine.per_host // one.stages
    launch = ["--num-instances", str(math.ceil(one.replicas / on_a_host))]
    launch += ["--num-replicas", str(one.replicas)]
    if one.stages > 1:
        launch += ["--devices-per-replica", str(one.stages)]
    return f"convoy launch {shlex.join(launch)} examples/cnns/train.py {shlex.join(words)}"


def recipe(flags: dict[str, Any], name: str) -> str:
    """Return the lines of a recipe file."""
    return yaml.safe_dump({name: flags}, sort_keys=False, default_flow_style=False)
