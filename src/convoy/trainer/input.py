"""The data of one run of a model."""

from __future__ import annotations

from convoy.engine.data.chunks import Feed
from convoy.engine.data.input import Budget, InputData, open_input
from convoy.engine.state import Mode
from convoy.engine.steps_per_execution import StepsPerExecution
from convoy.pipeline.stages import stage_assignment
from convoy.trainer.engine_model import EngineModel


def open_feed(
    engine_model: EngineModel,
    mode: Mode,
    data: InputData,
    budget: Budget,
    steps_per_execution: StepsPerExecution,
    *,
    batch_size: int | None,
    steps: int | None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
) -> Feed:
    """Return the feed of a run, after checking its data and building the model for it."""
    model, config = engine_model.model, engine_model.runner.current
    is_known = engine_model.prepared.graph is not None
    feed = open_input(
        model,
        mode,
        data,
        config,
        budget,
        steps_per_execution.maximum,
        batch_size=batch_size,
        steps=steps,
        shuffle=shuffle,
        class_weight=class_weight,
        was_built=engine_model.was_built,
    )
    engine_model.was_built = True
    if config.pipeline is None and not is_known and stage_assignment(model) is not None:
        raise ValueError(
            f"{model.name!r} has pipeline stages, which were found only when it was built for its "
            "data. Call it on some inputs before, for example model(x[:1])."
        )
    return feed
