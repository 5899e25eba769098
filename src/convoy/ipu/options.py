"""Every option of `IPUConfig`: its name, type, default, and what it does here."""

from __future__ import annotations

import logging
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
        name: with dots.
        default: copied for every configuration.
        doc: what it does here; empty if it has no meaning off an IPU.
        types: what may be assigned; by default the type of the default.
        deprecated_msg: what to use instead, if it is deprecated.
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
    def has_effect(self) -> bool:
        return bool(self.doc)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return self.doc or "No effect on these devices."

    def check_type(self, value: Any) -> None:
        """Refuse a value of another type; `True` is not a number here.

        Raises:
            TypeError: if the type is another one.
        """
        fits = type(value) in self.type
        if fits and self.types == IDS and not isinstance(value, int):
            fits = all(type(item) is int for item in value)
        if fits and isinstance(value, dict):
            fits = all(isinstance(k, str) and isinstance(v, str) for k, v in value.items())
        if not fits:
            raise TypeError(
                f"{self.name} = {value!r} is of type {_describe(value)}. Assign {self._expected}."
            )

    def warn_if_deprecated(self) -> None:
        """Say in the log what to use instead."""
        if self.deprecated:
            logging.getLogger("convoy.ipu").warning(
                f"{self.name} is deprecated. {self.deprecated_msg}"
            )

    @property
    def _expected(self) -> str:
        if self.types == IDS:
            return "an int, or a list or tuple of ints"
        if self.type == (dict,):
            return "a dict of strings"
        return f"a {self.type[0].__name__}"


def _describe(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        inside = ", ".join(sorted({type(item).__name__ for item in value}))
        return f"{type(value).__name__} of {inside}" if value else type(value).__name__
    return type(value).__name__


_TRAP = "floating_point_behaviour"
_BUFFER = "bytes of gradients that replicas exchange at a time; 0 leaves the size to Convoy"
_PARTIALS = "partialsType float: in what products are summed, whatever is asked for"

OPTIONS: tuple[Option, ...] = (
    Option(
        "auto_select_ipus", [], "devices of each logical device, /device:IPU:0 and up", types=IDS
    ),
    Option("select_ipus", [], "the same by the numbers of the devices", types=IDS),
    Option("allow_recompute", False, "stages of a pipeline keep their input only"),
    Option("selection_order", SelectionOrder.AUTO, "the order of a logical device's devices"),
    Option("serialization_output_folder", ""),
    Option("compilation_poplar_options", {}, "autoReport.all and autoReport.directory"),
    Option("gcl_poplar_options", {}),
    Option("convolutions.poplar_options", {}, _PARTIALS),
    Option("matmuls.poplar_options", {}, _PARTIALS),
    Option("matmuls.clear_pass_type", False),
    Option("slices.poplar_options", {}),
    Option("pooling.poplar_options", {}),
    Option(f"{_TRAP}.inv", False),
    Option(f"{_TRAP}.div0", False),
    Option(f"{_TRAP}.oflo", False),
    Option(f"{_TRAP}.nanoo", False),
    Option(f"{_TRAP}.esr", StochasticRoundingBehaviour.OFF, "rounds 16-bit weights by chance"),
    Option(f"{_TRAP}.set_all", False, "turns esr on, whatever its value"),
    Option(
        "norms.use_stable_statistics", False, "variances are of differences from the mean, always"
    ),
    Option(
        "norms.experimental.distributed_batch_norm_replica_group_size",
        1,
        "replicas that share the statistics of batch normalisation",
    ),
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
    Option("experimental.enable_prng_stability", False, "replicas of a model always round alike"),
    Option(
        "experimental.multi_replica_distribution.process_index", 0, "the number of this process"
    ),
    Option("experimental.multi_replica_distribution.process_count", 0, "processes: 0 or 1"),
)
