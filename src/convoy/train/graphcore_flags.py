"""The options of Graphcore's training application that are accepted and have no effect here.

Recipes may contain them. They are flags of `examples/cnns/train.py`, not of `convoy train`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from convoy.configuration import Option, Whole
from convoy.train.flags import ListOf, Options
from convoy.train.run_settings import count_stages

_XLA = Option(no_effect="XLA decides")
_HARDWARE = Option(no_effect="it configures IPU hardware")


@dataclass(frozen=True)
class GraphcoreOptions(Options):
    """The options of `convoy train` with those that only commands and recipes for IPUs use.

    accepted for compatibility, without effect:
        on_demand: attach late
        accelerator_side_reduction: reduce metrics on the device
        optimizer_state_offloading: optimizer state off the chip
        nanoo: NaN on overflow
        fused_preprocessing: fused normalisation
        half_partials: 16-bit partial sums
        internal_exchange_optimization_target: compiler target
        max_cross_replica_buffer_size: bytes of gradients per all-reduce
        max_reduce_many_buffer_size: bytes per reduction
        conv_dithering: dither convolutions
        gather_conv_output: gather outputs
        min_remote_tensor_size: bytes kept on the chip
        stable_norm: stable norm statistics
        available_memory_proportion: memory for convolutions
        scheduling_algorithm: compiler schedule
        prefetch_depth: prefetched batches
    """

    on_demand: Annotated[bool, _HARDWARE] = True
    accelerator_side_reduction: Annotated[
        bool, Option(no_effect="metrics are always reduced on the device")
    ] = False
    optimizer_state_offloading: Annotated[bool, _HARDWARE] = True
    nanoo: Annotated[bool, Option(no_effect="overflow is always infinite, as in IEEE 754")] = False
    fused_preprocessing: Annotated[bool, _XLA] = False
    half_partials: Annotated[bool, _XLA] = False
    internal_exchange_optimization_target: Annotated[
        Literal["cycles", "memory", "balanced"] | None, _HARDWARE
    ] = None
    max_cross_replica_buffer_size: Annotated[Whole, _HARDWARE] = 0
    max_reduce_many_buffer_size: Annotated[Whole, _HARDWARE] = 0
    conv_dithering: Annotated[bool, _HARDWARE] = False
    gather_conv_output: Annotated[bool, _HARDWARE] = False
    min_remote_tensor_size: Annotated[Whole, _HARDWARE] = 128
    stable_norm: Annotated[
        bool, Option(no_effect="statistics are always computed in two passes")
    ] = False
    available_memory_proportion: Annotated[ListOf[float], _HARDWARE] = field(default_factory=list)
    scheduling_algorithm: Annotated[
        Literal["CHOOSE_BEST", "CLUSTERING", "POST_ORDER", "LOOK_AHEAD", "SHORTEST_PATH"], _HARDWARE
    ] = "CHOOSE_BEST"
    prefetch_depth: Annotated[Whole, Option(no_effect="the engine decides")] = 1

    def __post_init__(self) -> None:
        if self.fused_preprocessing and not self.accelerator_side_preprocess:
            raise ValueError(
                "--fused-preprocessing needs images that the host has not normalised. Pass "
                "--accelerator-side-preprocess too."
            )
        stages, given = count_stages(self.pipeline_splits), len(self.available_memory_proportion)
        if given > 1 and (stages == 1 or given != 2 * stages):
            raise ValueError(
                f"--available-memory-proportion has {given} values, but the number of stages is "
                f"{stages}. Pass one value, or two for each of several stages."
            )
