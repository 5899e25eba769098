"""The pipeline stages of a run's model."""

import convoy
import keras
from convoy.train.run_settings import AUTO, RunSettings


def split_into_stages(model: keras.Model, settings: RunSettings, micro_batch: int) -> None:
    """Split a model at the layers of `--pipeline-splits`, or balance its stages.

    If all stages are on one device, only the layer names are checked.

    Args:
        model: compiled model.
        settings: settings of the run.
        micro_batch: micro-batch size for which stages are balanced.

    Raises:
        ValueError: if the model cannot be split there.
    """
    options = settings.options
    automatic = options.pipeline_splits[:1] == [AUTO]
    if automatic and settings.in_pipeline:
        convoy.split(model, settings.stages, batch_size=micro_batch)
    elif settings.stages > 1 and not automatic:
        convoy.split(model, options.pipeline_splits)
    if settings.in_pipeline:
        model.set_pipelining_options(
            schedule=options.pipeline_schedule,
            device_mapping=options.device_mapping,
            activation_checkpointing=options.activation_checkpointing,
        )
    else:
        model.reset_pipeline_stage_assignment()
