"""Which stage each call of a model's graph belongs to."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import keras
from convoy import keras_bridge
from convoy.keras_bridge import GraphCall, graph_calls
from convoy.pipeline import subclassed_stages

# Lower than Python's own, so that c1 is like c9.
LIKENESS = 0.5
# Of layers, in a message.
MOST_NAMES = 8


def calls_of(model: keras.Model) -> list[GraphCall]:
    """Return the calls of a model in their order, with those of nested models among them.

    Raises:
        ValueError: if the model is subclassed, and not built, or does not say what it calls.
    """
    if graph_calls(model) is None and keras_bridge.is_subclassed(model):
        subclassed_stages.trace(model)
    calls = graph_calls(model, into_nested=True)
    if calls is None:
        raise ValueError(
            f"{model.name!r} is not built, so its layers are not known yet. Call "
            "model.build(input_shape) first."
        )
    return calls


def split_by_name(model: keras.Model, names: Sequence[str]) -> list[int]:
    """Return the stage of every call, where each of some layers begins another one.

    Args:
        model: its layers are known.
        names: of the layers, in the order of the stages; `nested/layer` is inside of a model.

    Raises:
        ValueError: if a layer does not exist, is named twice or out of order, or would leave a
            stage empty.
    """
    calls = calls_of(model)
    firsts: dict[str, int] = {}
    for position, call in enumerate(calls):
        parts = call.name.split("/")
        for end in range(1, len(parts) + 1):
            firsts.setdefault("/".join(parts[:end]), position)
    cuts = []
    for name in names:
        if name not in firsts:
            raise ValueError(
                f"{name!r} is not a layer of {model.name!r}, so no stage can begin with it. "
                f"{_others(name, list(firsts))}"
            )
        cuts.append(firsts[name])
    for before, after in zip([0, *cuts], cuts, strict=False):
        if after <= before:
            name = calls[after].name
            problem = "is the first layer" if after == 0 else "does not come after the one before"
            raise ValueError(
                f"A stage cannot begin with {name!r}: it {problem}. Name layers in the order in "
                "which they run, without the first."
            )
    return [sum(position >= cut for cut in cuts) for position in range(len(calls))]


def _others(name: str, names: Sequence[str]) -> str:
    """Return layers like one that does not exist, or else some of those there are."""
    near = difflib.get_close_matches(name, names, 3, LIKENESS)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:MOST_NAMES]) + ", ..." * (len(names) > MOST_NAMES)
    return f"Its layers are {shown}."


def filled_assignment(calls: Sequence[GraphCall]) -> list[int]:
    """Return the stage of every call: its own, or where the last of its inputs is computed."""
    home: dict[int, int] = {}
    stages = []
    for call in calls:
        where = max((home.get(tensor, 0) for tensor in call.inputs), default=0)
        stage = where if call.mark is None else call.mark
        home |= dict.fromkeys(call.outputs, stage)
        stages.append(stage)
    return stages


def check_assignment(calls: Sequence[GraphCall], stages: Sequence[int | None]) -> None:
    """Refuse an assignment of calls to stages that cannot be run.

    Raises:
        ValueError: if a call has no stage, or a negative one; if it reads what a later stage
            computes; or if a stage is empty.
    """
    if len(stages) != len(calls):
        raise ValueError(
            f"{len(stages)} stages were given for {len(calls)} layers. Pass one for each layer, in "
            "the order in which they run."
        )
    home: dict[int, tuple[str, int]] = {}
    for call, stage in zip(calls, stages, strict=True):
        if stage is None:
            raise ValueError(f"Layer {call.name!r} has no stage, but others have. Give it one.")
        if stage < 0:
            raise ValueError(f"Layer {call.name!r} has stage {stage}. Number stages from 0.")
        for tensor in call.inputs:
            source, earlier = home.get(tensor, ("", 0))
            if earlier > stage:
                raise ValueError(
                    f"Layer {call.name!r} of stage {stage} reads what {source!r} of stage "
                    f"{earlier} computes. A stage can only feed the same or a later one."
                )
        home |= dict.fromkeys(call.outputs, (call.name, stage))
    present = {stage for stage in stages if stage is not None}
    for stage in range(max(present) + 1):
        if stage not in present:
            later = calls[stages.index(max(present))].name
            raise ValueError(
                f"Stage {stage} has no layer, but layer {later!r} has stage {max(present)}. Number "
                "the stages from 0 without a gap."
            )
