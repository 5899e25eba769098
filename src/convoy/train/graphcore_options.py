"""The options of Graphcore's training application that are accepted and have no effect here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from convoy.configuration import Option, Whole
from convoy.train.options import ListOf, Options
from convoy.train.run_settings import count_stages

_ignored = partial(Option, group="accepted for compatibility, without effect")
_compiler = partial(_ignored, no_effect="XLA decides")
_hardware = partial(_ignored, no_effect="it configures IPU hardware")


@dataclass(frozen=True)
class GraphcoreOptions(Options):
    """The options of `convoy train` with those that only commands written for IPUs use."""

    on_demand: Annotated[bool, _hardware("attach late")] = True
    ckpt_all_instances: Annotated[
        bool,
        _ignored("checkpoints of every process", no_effect="the first process writes them"),
    ] = False
    accelerator_side_reduction: Annotated[
        bool,
        _ignored(
            "reduce metrics on the device", no_effect="metrics are always reduced on the device"
        ),
    ] = False
    optimizer_state_offloading: Annotated[bool, _hardware("optimizer state off the chip")] = True
    nanoo: Annotated[
        bool,
        _ignored("NaN on overflow", no_effect="overflow is always infinite, as in IEEE 754"),
    ] = False
    fused_preprocessing: Annotated[bool, _compiler("fused normalisation")] = False
    half_partials: Annotated[bool, _compiler("16-bit partial sums")] = False
    internal_exchange_optimization_target: Annotated[
        str | None, _hardware("compiler target", choices=("cycles", "memory", "balanced"))
    ] = None
    max_cross_replica_buffer_size: Annotated[
        Whole, _hardware("bytes of gradients per all-reduce")
    ] = 0
    max_reduce_many_buffer_size: Annotated[Whole, _hardware("bytes per reduction")] = 0
    conv_dithering: Annotated[bool, _hardware("dither convolutions")] = False
    gather_conv_output: Annotated[bool, _hardware("gather outputs")] = False
    min_remote_tensor_size: Annotated[Whole, _hardware("bytes kept on the chip")] = 128
    stable_norm: Annotated[
        bool,
        _ignored(
            "stable norm statistics", no_effect="statistics are always computed in two passes"
        ),
    ] = False
    available_memory_proportion: Annotated[ListOf[float], _hardware("memory for convolutions")] = (
        field(default_factory=list)
    )
    scheduling_algorithm: Annotated[
        str,
        _hardware(
            "compiler schedule",
            choices=("CHOOSE_BEST", "CLUSTERING", "POST_ORDER", "LOOK_AHEAD", "SHORTEST_PATH"),
        ),
    ] = "CHOOSE_BEST"
    prefetch_depth: Annotated[
        Whole, _ignored("prefetched batches", no_effect="the engine decides")
    ] = 1
    pipeline_validation_model: Annotated[
        bool,
        _ignored(
            "validate in stages",
            no_effect="validation runs the complete model on every device, with the same result",
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.fused_preprocessing and not self.accelerator_side_preprocess:
            raise ValueError(
                "--fused-preprocessing needs images that the host has not normalised. Pass "
                "--accelerator-side-preprocess too."
            )
        stages, memory = count_stages(self.pipeline_splits), self.available_memory_proportion
        if len(memory) > 1 and stages == 1:
            raise ValueError(
                "--available-memory-proportion: a model without stages takes one value."
            )
        if len(memory) > 1 and len(memory) != 2 * stages:
            raise ValueError(
                f"--available-memory-proportion has {len(memory)} values, but {stages} stages take "
                f"1 or {2 * stages}."
            )
