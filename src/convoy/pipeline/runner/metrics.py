"""Metrics of a pipeline: per replica during a device call, summed over replicas after it."""

from collections.abc import Callable

import jax.numpy as jnp
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.placement import device_put, tree_shapes
from convoy.jaxpr import Atom, Trace, depending_on
from convoy.pipeline.device_layout import DeviceLayout
from convoy.types import Arrays
from jax.extend.core import JaxprEqn, Var

# Replicas update copies of the metrics' variables, which are added up at the end of a device call:
#
#     variables   v  --->  replica 0   v + a        v + a
#                          replica 1   0 + b   -->      + b  --->  v + a + b
#
# This is correct for sums, which Keras's metrics accumulate. Custom metrics are checked on the
# traced update: it must have the form new = old + a term that does not depend on `old`.

_SAME_VALUE = ("convert_element_type", "copy", "reshape", "squeeze", "broadcast_in_dim")
# Primitives that add, with the operand that is added to; `None` if it may be any operand.
_ADDITIONS = {"add": None, "add_any": None, "sub": 0, "scatter-add": 0}


def replica_metrics(layout: DeviceLayout, chunk: Chunk) -> dict[int, Arrays]:
    """Return the metrics that each replica begins with: zero on all but the first."""
    metrics = keras_bridge.values(layout.variables.parts.metrics)
    group = layout.last_group

    def initial(replica: int) -> Arrays:
        values = [group.split(value)[replica] for value in metrics]
        if replica == 0 or not chunk.sharded:
            return values
        return [
            device_put(np.zeros(value.shape, value.dtype), group.devices[replica])
            if aggregation == "sum"
            else value
            for value, aggregation in zip(values, layout.roles.aggregations, strict=True)
        ]

    return {replica: initial(replica) for replica in group.devices}


def total_metrics(metrics: dict[int, Arrays], layout: DeviceLayout, chunk: Chunk) -> Arrays:
    """Return the metrics of all replicas, the same in every process."""
    variables = layout.variables.parts.metrics
    # Every replica ran the same incomplete batch, so it counts once.
    counted = [own for replica, own in metrics.items() if chunk.sharded or replica == 0]
    device = layout.common_group.first_device
    if counted:
        totals = [
            sum((device_put(own[i], device) for own in counted[1:]), counted[0][i])
            for i in range(len(variables))
        ]
    else:
        totals = [jnp.zeros(variable.shape, variable.dtype) for variable in variables]
    if layout.placement.is_compile_only:
        totals = [np.asarray(total) for total in totals]
    if layout.placement.spans_processes:
        everywhere = distributed.totals([np.asarray(total) for total in totals])
        totals = [device_put(total, device) for total in everywhere]
    return [
        total if aggregation == "sum" or not chunk.sharded else total / layout.placement.replicas
        for total, aggregation in zip(totals, layout.roles.aggregations, strict=True)
    ]


def check_sums(
    model: keras.Model, update: Callable[[Arrays], Arrays], metrics: Arrays, replicas: int
) -> None:
    """Reject custom metrics that are not sums over batches and cannot be added over replicas.

    Args:
        model: model with the metrics.
        update: function from the state of the metrics before a batch to that after it.
        metrics: state of the metrics.
        replicas: number of replicas.

    Raises:
        ValueError: with the variable that is not a sum, if there are several replicas.
    """
    users = keras_bridge.of_custom_metrics(model, model.metrics_variables)
    if replicas == 1 or not any(users):
        return
    trace = Trace.of(lambda *values: update(list(values)), tree_shapes(metrics))
    for index, variable in enumerate(model.metrics_variables):
        if users[index] and not _is_sum(trace, index):
            raise ValueError(
                f"The metric variable {variable.path!r} is not a sum over batches, and {replicas} "
                "replicas of a pipeline can only add up sums. Keep sums in it, train on one "
                "replica, or without stages."
            )


def _is_sum(trace: Trace, index: int) -> bool:
    """Return whether an output is the input of the same index plus a term that reads no input."""
    made_by: dict[Atom, JaxprEqn] = {v: made for made in trace.equations for v in made.outvars}
    stateful = depending_on(trace.inputs, trace.equations)
    atom = trace.outputs[index]
    while atom is not trace.inputs[index]:
        atom = _added_to(made_by[atom], stateful) if atom in made_by else None
        if atom is None:
            return False
    return True


def _added_to(equation: JaxprEqn, stateful: set[Var]) -> Atom:
    """Return the operand that an equation adds to or passes on; `None` if it does neither."""
    name, operands = equation.primitive.name, equation.invars
    if name in _SAME_VALUE:
        return operands[0]
    found = [i for i, atom in enumerate(operands) if isinstance(atom, Var) and atom in stateful]
    if name not in _ADDITIONS or len(found) != 1 or _ADDITIONS[name] not in (None, found[0]):
        return None
    return operands[found[0]]
