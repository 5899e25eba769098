"""What is said about a model by Graphcore's methods, before it runs."""

from __future__ import annotations

from typing import Any

from convoy.ipu import notice
from convoy.ipu.accumulation import check_offload, read_dtype
from convoy.ipu.enums import (
    GradientAccumulationReductionMethod,
    ReplicatedMetricReductionMethod,
)
from convoy.ipu.keras import pipeline_options
from convoy.ipu.keras.pipeline_options import PipelineOptions

_ACCUMULATION_OPTIONS = {
    "offload_weight_update_variables",
    "replicated_optimizer_state_sharding",
    "dtype",
    "name",
}


class Settings:
    """How a model accumulates gradients, runs in stages, and tells of itself."""

    def __init__(self) -> None:
        self.method = GradientAccumulationReductionMethod.SUM
        self.accumulation = 1
        self.accumulation_dtype: str | None = None
        self.pipeline = PipelineOptions()
        self.accumulate_outfeed = False
        self.infeed_options: dict[str, Any] = {}
        self.outfeed_options: dict[str, Any] = {}
        self.asynchronous = False
        self.metric_method = ReplicatedMetricReductionMethod.NONE

    def set_gradient_accumulation_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        gradient_accumulation_reduction_method: str | GradientAccumulationReductionMethod = "sum",
        use_v2_gradient_accumulation_optimizer: bool = False,
        **gradient_accumulation_optimizer_kwargs: Any,
    ) -> None:
        """Choose how many micro-batches make a weight update of a model without stages.

        Args:
            gradient_accumulation_steps_per_replica: micro-batches; `None` leaves it as it is.
            gradient_accumulation_reduction_method: of their gradients; shared with
                `set_pipelining_options`, and set by every call.
            use_v2_gradient_accumulation_optimizer: has no effect.
            gradient_accumulation_optimizer_kwargs: `dtype`, in which gradients are added up; and
                `offload_weight_update_variables`, `replicated_optimizer_state_sharding` and
                `name`, which have no effect.
        """
        options = gradient_accumulation_optimizer_kwargs
        pipeline_options.check_count(gradient_accumulation_steps_per_replica)
        method = GradientAccumulationReductionMethod.parse(gradient_accumulation_reduction_method)
        for name in options:
            if name not in _ACCUMULATION_OPTIONS:
                raise ValueError(
                    f"set_gradient_accumulation_options() does not take {name!r}. Leave it out."
                )
        check_offload(options)
        dtype = read_dtype("dtype", options)
        ignored = [name for name, value in options.items() if value and name != "dtype"]
        if use_v2_gradient_accumulation_optimizer:
            ignored.append("use_v2_gradient_accumulation_optimizer")
        notice.without_effect(ignored, "set_gradient_accumulation_options")
        self.accumulation = gradient_accumulation_steps_per_replica or self.accumulation
        self.method, self.accumulation_dtype = method, dtype

    def set_pipelining_options(
        self,
        gradient_accumulation_steps_per_replica: int | None = None,
        device_mapping: list[int] | None = None,
        accumulate_outfeed: bool | None = None,
        gradient_accumulation_reduction_method: str | GradientAccumulationReductionMethod = "sum",
        **pipelining_kwargs: Any,
    ) -> None:
        """Choose how a model in stages is trained.

        Args:
            gradient_accumulation_steps_per_replica: micro-batches of a weight update: a multiple
                of twice the stages (Grouped) or of the stages (Interleaved). `None` leaves it as
                it is.
            device_mapping: the device of each stage; one for each unless it was ever given.
                `None` leaves it as it is.
            accumulate_outfeed: whether callbacks are told of executions even if
                `set_asynchronous_callbacks` says otherwise; at first they are not. `None` leaves
                it as it is.
            gradient_accumulation_reduction_method: of the gradients of these micro-batches.
            pipelining_kwargs: `pipeline_schedule`, `recomputation_mode`,
                `gradient_accumulation_dtype`; others are checked and have no effect. They take the
                place of those of the call before.
        """
        pipeline_options.check_count(gradient_accumulation_steps_per_replica)
        method = GradientAccumulationReductionMethod.parse(gradient_accumulation_reduction_method)
        count = gradient_accumulation_steps_per_replica or self.pipeline.count
        mapping = self.pipeline.device_mapping if device_mapping is None else device_mapping
        self.pipeline = pipeline_options.read(count, mapping, method, pipelining_kwargs)
        self.method = method
        if accumulate_outfeed is not None:
            self.accumulate_outfeed = bool(accumulate_outfeed)

    def set_asynchronous_callbacks(self, asynchronous: bool = False) -> None:
        """Choose whether callbacks are told of every step and replica while the devices go on.

        A model in stages whose results are accumulated by `accumulate_outfeed` tells of
        executions in any case, but in `predict`.

        Args:
            asynchronous: whether; by default callbacks are called once per execution.
        """
        self.asynchronous = asynchronous

    def set_infeed_queue_options(self, **kwargs: Any) -> None:
        """Accept the options of the input queue, whose depth follows from the memory for data."""
        _check_queue(
            "set_infeed_queue_options",
            kwargs,
            {"prefetch_depth", "optimise_latency", "device_ordinal"},
        )
        self.infeed_options = kwargs

    def set_outfeed_queue_options(self, **kwargs: Any) -> None:
        """Accept the options of the output queue."""
        _check_queue("set_outfeed_queue_options", kwargs, {"buffer_depth", "optimise_latency"})
        self.outfeed_options = kwargs


def _check_queue(method: str, options: dict[str, Any], known: set[str]) -> None:
    for name in options:
        if name not in known:
            raise ValueError(
                f"{method}() does not take {name!r}. It takes {', '.join(sorted(known))}."
            )
    notice.without_effect(list(options), method)
