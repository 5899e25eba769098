"""The options of `IPUConfig`: name, default, type, and effect on these devices."""

from dataclasses import dataclass
from typing import Any

from convoy.ipu.enums import (
    DeviceConnectionType,
    MergeRemoteBuffersBehaviour,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)

IDS = (int, list, tuple)


@dataclass(frozen=True)
class Option:
    """One attribute of the tree.

    Attributes:
        name: dotted name.
        default: default value; copied for every configuration.
        doc: effect on these devices; empty if there is none.
        types: accepted types; by default the type of the default.
        deprecated_msg: replacement of the option, if it is deprecated.
    """

    name: str
    default: Any
    doc: str = ""
    types: tuple[type, ...] = ()
    deprecated_msg: str = ""

    @property
    def type(self) -> tuple[type, ...]:
        return self.types or (type(self.default),)

    @property
    def deprecated(self) -> bool:
        return bool(self.deprecated_msg)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.doc or "No effect on these devices."

    def check_type(self, value: object) -> None:
        """Raise `TypeError` if a value has another type; a bool is not an int here."""
        fits = type(value) in self.type
        if isinstance(value, (list, tuple)):
            fits = fits and all(type(item) is int for item in value)
        elif isinstance(value, dict):
            fits = fits and all(isinstance(item, str) for item in [*value, *value.values()])
        if fits:
            return
        expected = f"a {self.type[0].__name__}"
        if self.types == IDS:
            expected = "an int, or a list or tuple of ints"
        elif self.type == (dict,):
            expected = "a dict of strings"
        found = type(value).__name__
        if isinstance(value, (list, tuple)) and value:
            found += f" of {', '.join(sorted({type(item).__name__ for item in value}))}"
        raise TypeError(f"{self.name} = {value!r} is of type {found}. Assign {expected}.")


_FLOATING_POINT = "floating_point_behaviour"
_BUFFER = "bytes of gradients per all-reduce; 0 is Convoy's default"
_GROUP = "synchronised batch normalisation: replicas that share statistics"
_ROUNDING = "stochastic rounding of 16-bit weights"
_PARTIALS = "partialsType float: products are always accumulated in float32"

OPTIONS: tuple[Option, ...] = (
    Option("auto_select_ipus", [], "number of devices of each logical device", types=IDS),
    Option("select_ipus", [], "index of the device of each logical device", types=IDS),
    Option("allow_recompute", False, "activation checkpointing of pipeline stages"),
    Option("selection_order", SelectionOrder.AUTO, "the order of a logical device's devices"),
    Option("serialization_output_folder", ""),
    Option("compilation_poplar_options", {}, "autoReport.all and autoReport.directory"),
    Option("gcl_poplar_options", {}),
    Option("convolutions.poplar_options", {}, _PARTIALS),
    Option("matmuls.poplar_options", {}, _PARTIALS),
    Option("matmuls.clear_pass_type", False),
    Option("slices.poplar_options", {}),
    Option("pooling.poplar_options", {}),
    Option(f"{_FLOATING_POINT}.inv", False),
    Option(f"{_FLOATING_POINT}.div0", False),
    Option(f"{_FLOATING_POINT}.oflo", False),
    Option(f"{_FLOATING_POINT}.nanoo", False),
    Option(f"{_FLOATING_POINT}.esr", StochasticRoundingBehaviour.OFF, _ROUNDING),
    Option(f"{_FLOATING_POINT}.set_all", False, "turns esr on"),
    Option("norms.use_stable_statistics", False, "variances are always computed in two passes"),
    Option("norms.experimental.distributed_batch_norm_replica_group_size", 1, _GROUP),
    Option("optimizations.math.fast", False),
    Option("optimizations.math.dot_strength", True),
    Option("optimizations.enable_fast_math", False, deprecated_msg="Use optimizations.math.fast."),
    Option("optimizations.prefetch_data_streams", True),
    Option("optimizations.combine_embedding_lookups", False),
    Option("optimizations.combine_matmuls", False),
    Option("optimizations.enable_graph_outlining", True),
    Option("optimizations.merge_infeed_io_copies", True),
    Option("optimizations.maximum_cross_replica_sum_buffer_size", 0, _BUFFER),
    Option("optimizations.maximum_reduce_scatter_buffer_size", 0),
    Option("optimizations.maximum_inter_ipu_copies_buffer_size", 0),
    Option("optimizations.maximum_send_recv_cluster_size", 0),
    Option("optimizations.maximum_reduce_many_buffer_size", 0),
    Option("optimizations.maximum_all_gather_buffer_size", 0),
    Option("optimizations.minimum_remote_tensor_size", 128),
    Option("optimizations.merge_remote_buffers", MergeRemoteBuffersBehaviour.IF_BENEFICIAL),
    Option("optimizations.enable_gather_simplifier", True),
    Option("optimizations.enable_dynamic_slice_replacement", True),
    Option("optimizations.triangular_solve_expander_block_size", 0),
    Option("optimizations.cholesky_block_size", 0),
    Option("scheduling.algorithm", SchedulingAlgorithm.CHOOSE_BEST),
    Option("scheduling.maximum_scheduler_lookahead_depth", 5),
    Option("scheduling.maximum_scheduler_search_space_size", 64),
    Option("io_tiles.num_io_tiles", 0),
    Option("io_tiles.place_ops_on_io_tiles", False),
    Option("io_tiles.available_memory_proportion", 0.9),
    Option("device_connection.type", DeviceConnectionType.ALWAYS),
    Option("device_connection.version", ""),
    Option("device_connection.enable_remote_buffers", False),
    Option("ipu_model.compile_ipu_code", True),
    Option("ipu_model.tiles_per_ipu", 0),
    Option("ipu_model.version", "ipu2"),
    Option("experimental.always_rearrange_copies_on_the_host", False),
    Option("experimental.enable_remote_buffer_embedding", False),
    Option("experimental.enable_prng_stability", False, "replicas always round identically"),
    Option("experimental.multi_replica_distribution.process_index", 0, "index of this process"),
    Option("experimental.multi_replica_distribution.process_count", 0, "processes: 0 or 1"),
)
