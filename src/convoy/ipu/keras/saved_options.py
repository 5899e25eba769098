"""What `save` keeps of the options of a model, beside what Keras keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convoy.ipu.enums import (
    GradientAccumulationReductionMethod,
    ReplicatedMetricReductionMethod,
)
from convoy.ipu.keras.pipeline_options import PipelineOptions
from convoy.ipu.notice import log

if TYPE_CHECKING:
    from convoy.ipu.keras.extension import Extensions

FILE = "convoy_ipu.json"


def write(options: Extensions, folder: str | Path) -> None:
    """Write a model's options to a folder of the file that Keras saves it in."""
    pipeline = options.pipeline
    assigned = options.pending_stages or options._stages()
    kept = {
        "gradient_accumulation_steps_per_replica": options.accumulation,
        "gradient_accumulation_reduction_method": options.method.name,
        "replicated_metric_reduction_method": options.metric_method.name,
        "asynchronous_callbacks": options.asynchronous,
        "pipelining_gradient_accumulation_steps_per_replica": pipeline.count,
        "pipelining_device_mapping": pipeline.device_mapping,
        "pipelining_accumulate_outfeed": options.accumulate_outfeed,
        "pipeline_stage_assignment": assigned,
        "infeed_queue_options": options.infeed_options,
        "outfeed_queue_options": options.outfeed_options,
    }
    (Path(folder) / FILE).write_text(json.dumps(kept))
    if pipeline != PipelineOptions(pipeline.count, pipeline.device_mapping, method=pipeline.method):
        log.info(
            "The schedule and other keyword arguments of set_pipelining_options() are not saved. "
            "Call it again after loading."
        )
    if options.accumulation_dtype is not None:
        log.info(
            "Keyword arguments of set_gradient_accumulation_options() are not saved. Call it again "
            "after loading."
        )


def read(options: Extensions, folder: str | Path) -> None:
    """Take over what another model's `write` has kept; a file of stock Keras has nothing."""
    file = Path(folder) / FILE
    if not file.is_file():
        return
    kept: dict[str, Any] = json.loads(file.read_text())
    method = GradientAccumulationReductionMethod[kept["gradient_accumulation_reduction_method"]]
    options.accumulation = kept["gradient_accumulation_steps_per_replica"]
    options.method = method
    options.pipeline = PipelineOptions(
        kept["pipelining_gradient_accumulation_steps_per_replica"],
        kept["pipelining_device_mapping"],
        method=method,
    )
    options.accumulate_outfeed = kept["pipelining_accumulate_outfeed"]
    options.asynchronous = kept["asynchronous_callbacks"]
    options.infeed_options = kept["infeed_queue_options"]
    options.outfeed_options = kept["outfeed_queue_options"]
    options.set_replication_options(
        ReplicatedMetricReductionMethod[kept["replicated_metric_reduction_method"]]
    )
    options.pending_stages = kept["pipeline_stage_assignment"]
    if options.model.built:
        options._assign()
