"""Options of a model that Graphcore's methods set, and the file that saves them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from convoy.arguments import whole_number
from convoy.ipu import checks, notice
from convoy.ipu.enums import GradientAccumulationReductionMethod, ReplicatedMetricReductionMethod
from convoy.ipu.gradient_accumulation import Accumulation, check_offload, read_dtype
from convoy.ipu.pipelining.options import PipelineOptions, read
from convoy.types import Json

FILE = "convoy_ipu.json"

_SAVED = {
    "asynchronous_callbacks": "asynchronous",
    "pipelining_accumulate_outfeed": "accumulate_outfeed",
    "infeed_queue_options": "infeed_options",
    "outfeed_queue_options": "outfeed_options",
}
"""Attributes that are saved as they are, by their keys in the file."""

_STEPS = "gradient_accumulation_steps_per_replica"
_ACCUMULATION_OPTIONS = (
    "dtype",
    "name",
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
)


class ModelOptions:
    """Options of gradient accumulation, pipeline parallelism and reporting."""

    def __init__(self) -> None:
        self.accumulation = Accumulation()
        self.pipeline = PipelineOptions()
        self.accumulate_outfeed = False
        self.infeed_options: Json = {}
        self.outfeed_options: Json = {}
        self.asynchronous = False
        self.metric_method = ReplicatedMetricReductionMethod.NONE

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: str | GradientAccumulationReductionMethod = "sum",
        use_v2_gradient_accumulation_optimizer: bool = False,
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """Set gradient accumulation of a model without pipeline stages.

        Args:
            gradient_accumulation_steps_per_replica: micro-batches per weight update; `None` keeps
                the current number.
            gradient_accumulation_reduction_method: reduction of their gradients; shared with
                `set_pipelining_options`, and set by every call.
            use_v2_gradient_accumulation_optimizer: no effect.
            gradient_accumulation_optimizer_kwargs: `dtype`, the dtype of the accumulated gradients;
                `offload_weight_update_variables`, `replicated_optimizer_state_sharding` and `name`
                have no effect.
        """
        where, options = "set_gradient_accumulation_options", gradient_accumulation_optimizer_kwargs
        count = _micro_batches(gradient_accumulation_steps_per_replica)
        method = GradientAccumulationReductionMethod.parse(gradient_accumulation_reduction_method)
        checks.known_names(where, options, _ACCUMULATION_OPTIONS)
        check_offload(options)
        dtype = read_dtype("dtype", options.pop("dtype", None))
        ignored = {"use_v2_gradient_accumulation_optimizer": use_v2_gradient_accumulation_optimizer}
        notice.no_effect(where, options | ignored)
        self._set_accumulation(
            Accumulation(count or self.accumulation.gradient_accumulation, method, dtype)
        )

    def _set_accumulation(self, accumulation: Accumulation) -> None:
        """Set gradient accumulation; the reduction is shared with the pipeline options."""
        self.accumulation = accumulation
        self.pipeline = replace(self.pipeline, method=accumulation.method)

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: str | GradientAccumulationReductionMethod = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """Set the options of a model with pipeline stages.

        Args:
            gradient_accumulation_steps_per_replica: micro-batches per weight update: a multiple of
                twice the number of stages (Grouped, that is GPipe) or of the number of stages
                (Interleaved, that is 1F1B). `None` keeps the current number.
            device_mapping: the device of each stage; at first one device per stage. `None` keeps
                the current mapping.
            accumulate_outfeed: whether callbacks are called once per execution, even with
                `set_asynchronous_callbacks`; at first they are not. `None` keeps the current value.
            gradient_accumulation_reduction_method: reduction of the gradients of micro-batches.
            pipelining_kwargs: `pipeline_schedule`, `recomputation_mode`,
                `gradient_accumulation_dtype`; others are checked and have no effect. They replace
                those of the previous call.
        """
        count = _micro_batches(gradient_accumulation_steps_per_replica)
        mapping = self.pipeline.device_mapping if device_mapping is None else device_mapping
        method = gradient_accumulation_reduction_method
        self.pipeline = read(
            count or self.pipeline.gradient_accumulation, mapping, method, pipelining_kwargs
        )
        self.accumulation = replace(self.accumulation, method=self.pipeline.method)
        if accumulate_outfeed is not None:
            self.accumulate_outfeed = bool(accumulate_outfeed)

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Set whether callbacks are called for every step and replica, while the devices run.

        With pipeline stages and `accumulate_outfeed`, callbacks of `fit` and `evaluate` are called
        once per execution in any case.

        Args:
            asynchronous: whether callbacks are called for every step and replica; by default, they
                are called once per execution.
        """
        self.asynchronous = asynchronous

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Accept options of the input queue; they have no effect."""
        known = ("device_ordinal", "optimise_latency", "prefetch_depth")
        self.infeed_options = _queue_options("set_infeed_queue_options", kwargs, known)

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Accept options of the output queue; they have no effect."""
        known = ("buffer_depth", "optimise_latency")
        self.outfeed_options = _queue_options("set_outfeed_queue_options", kwargs, known)

    def _write(self, folder: str | Path, stages: list[int] | None) -> None:
        """Write the options and the stage of each layer into the folder of a saved model."""
        pipeline = self.pipeline
        saved = {key: getattr(self, name) for key, name in _SAVED.items()} | {
            _STEPS: self.accumulation.gradient_accumulation,
            "gradient_accumulation_reduction_method": self.accumulation.method.name,
            "replicated_metric_reduction_method": self.metric_method.name,
            f"pipelining_{_STEPS}": pipeline.gradient_accumulation,
            "pipelining_device_mapping": pipeline.device_mapping,
            "pipeline_stage_assignment": stages,
        }
        (Path(folder) / FILE).write_text(json.dumps(saved))
        unsaved = {
            "set_pipelining_options": pipeline
            != PipelineOptions(
                pipeline.gradient_accumulation, pipeline.device_mapping, method=pipeline.method
            ),
            "set_gradient_accumulation_options": self.accumulation.dtype is not None,
        }
        for method, is_unsaved in unsaved.items():
            if is_unsaved:
                notice.log.info(
                    f"Keyword arguments of {method}(), such as the schedule or the dtype, are not "
                    "saved. Call it again after loading."
                )

    def _read(self, folder: str | Path) -> Json | None:
        """Set the options that were written, and return them; a file of stock Keras has none."""
        file = Path(folder) / FILE
        if not file.is_file():
            return None
        saved: Json = json.loads(file.read_text())
        method = GradientAccumulationReductionMethod[
            saved["gradient_accumulation_reduction_method"]
        ]
        self.accumulation = Accumulation(saved[_STEPS], method)
        self.pipeline = PipelineOptions(
            saved[f"pipelining_{_STEPS}"], saved["pipelining_device_mapping"], method=method
        )
        for key, name in _SAVED.items():
            setattr(self, name, saved[key])
        return saved


def _micro_batches(count: int | None) -> int | None:
    if count is not None:
        whole_number(_STEPS, count, "a number of micro-batches")
    return count


def _queue_options(where: str, options: Json, known: tuple[str, ...]) -> Json:
    checks.known_names(where, options, known)
    notice.no_effect(where, dict.fromkeys(options, True))
    return options
