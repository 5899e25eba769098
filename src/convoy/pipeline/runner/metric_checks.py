"""Whether metrics keep sums, which replicas of a pipeline can add up without seeing each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
from convoy import keras_bridge
from convoy.engine.data.chunks import shapes
from convoy.jaxpr import Trace
from jax.extend.core import JaxprEqn, Var

Arrays = list[jax.Array]

_SAME_VALUE = ("convert_element_type", "copy", "reshape", "squeeze", "broadcast_in_dim")
# Where what is added to is among the operands of an equation; `None` if it may be any.
_ADDS = {"add": None, "add_any": None, "sub": 0, "scatter-add": 0}


def check_sums(
    model: keras.Model, update: Callable[[Arrays], Arrays], metrics: Arrays, replicas: int
) -> None:
    """Refuse a metric of the user's to which batches are not added.

    Args:
        model: whose metrics they are.
        update: returns their state after a batch, by that before it.
        metrics: their state.
        replicas: how many there are.

    Raises:
        ValueError: with the variable that is no sum, if there are several replicas.
    """
    users = keras_bridge.are_of_users_metrics(model, model.metrics_variables)
    if replicas == 1 or not any(users):
        return
    trace = Trace.of(lambda *values: update(list(values)), shapes(metrics))
    for place, variable in enumerate(model.metrics_variables):
        if users[place] and not _is_added_to(trace, place):
            raise ValueError(
                f"The metric variable {variable.path!r} is not a sum over batches, and {replicas} "
                "replicas of a pipeline cannot tell each other more than sums. Keep sums in it, "
                "train on one replica, or without stages."
            )


def _is_added_to(trace: Trace, place: int) -> bool:
    """Say whether an output is the input at its place, and something that no input is part of."""
    made_by: dict[Any, JaxprEqn] = {v: made for made in trace.equations for v in made.outvars}
    stateful = set(trace.inputs)
    for equation in trace.equations:
        if any(isinstance(atom, Var) and atom in stateful for atom in equation.invars):
            stateful.update(equation.outvars)
    atom = trace.outputs[place]
    while atom is not trace.inputs[place]:
        atom = _added_to(made_by[atom], stateful) if atom in made_by else None
        if atom is None:
            return False
    return True


def _added_to(equation: JaxprEqn, stateful: set[Var]) -> Any:
    """Return what an equation adds to, or passes on; `None` if it does neither."""
    name, operands = equation.primitive.name, equation.invars
    if name in _SAME_VALUE:
        return operands[0]
    places = [i for i, atom in enumerate(operands) if isinstance(atom, Var) and atom in stateful]
    if name not in _ADDS or len(places) != 1 or _ADDS[name] not in (None, places[0]):
        return None
    return operands[places[0]]
