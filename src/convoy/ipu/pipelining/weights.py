"""Networks of earlier calls of `pipeline`, so that later calls continue with their weights.

TensorFlow builds a graph once and runs it many times. Here, functions are called many times, so the
networks are stored with them: with the functions of the stages, or with the function that makes the
stages each time, if `ipu_compiler.compile` or a strategy runs it.
"""

from collections.abc import Callable, Hashable
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
from convoy.ipu import notice
from convoy.ipu.pipelining.graph import Stages
from convoy.ipu.pipelining.network import Network
from convoy.ipu.program import Host

_ATTRIBUTE = "_convoy_pipelines"
_made_by: WeakKeyDictionary[CodeType, set[int]] = WeakKeyDictionary()
"""Ids of the weights of the pipeline that was built last, by the code of its first stage."""


class Networks:
    """The networks of some stages, for different modes, shapes and options."""

    def __init__(self, stages: Stages) -> None:
        first = stages[0][0]
        self._code = first.__code__ if isinstance(first, FunctionType) else None
        self._networks: dict[Hashable, Network] = {}
        self._newest: Network | None = None

    def get(self, key: Hashable, build: Callable[[], Network]) -> Network:
        """Return the network for a key, with the weights of the network used last."""
        if key not in self._networks:
            self._networks[key] = build()
        network, newest = self._networks[key], self._newest
        if newest is None:
            self._warn_of_new_weights(network)
        elif network is not newest:
            _copy(newest.model, network.model)
        self._newest = network
        return network

    def _warn_of_new_weights(self, network: Network) -> None:
        """Log a warning if the same code has made stages before, with other weights."""
        if self._code is None:
            return
        weights = {id(variable) for variable in network.model.weights}
        before = _made_by.get(self._code)
        if before and not before & weights:
            notice.once(
                "The stages of a pipeline were created again, with new weights. To keep the "
                "weights, define the stages once, or make their layers outside of them."
            )
        _made_by[self._code] = weights


def networks_of(stages: Stages, host: Host | None) -> Networks:
    """Return the networks of stages; or of this call of `pipeline` in a function on the host."""
    own = _kept_with(stages[0][0]).setdefault(stages, Networks(stages))
    if host is None:
        return own
    return _kept_with(host.origin).setdefault(host.pipelines, own)


def function_key(function: Callable[..., Any] | None) -> Hashable:
    """Return a key that is equal for functions with the same code and the same closure."""
    if not isinstance(function, FunctionType):
        return function
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*closure, *(function.__defaults__ or ())]
    return function.__code__, tuple(v if isinstance(v, Hashable) else id(v) for v in values)


def _kept_with(function: Callable[..., Any]) -> dict[Hashable, Networks]:
    """Return the networks that live as long as a function, or the object of a method."""
    owner: Any = getattr(function, "__self__", function)
    # An attribute of the owner, since a network refers to its stages: as the value of a weak
    # dictionary it would keep its own key alive. Both are collected together this way.
    # Without `setattr`, which Keras would treat as a change of a layer's state.
    attributes = getattr(owner, "__dict__", {})
    return attributes.setdefault(_ATTRIBUTE, {}) if isinstance(attributes, dict) else {}


def _copy(source: keras.Model, target: keras.Model) -> None:
    """Copy the weights of one network to another of the same stages.

    Raises:
        ValueError: if the stages have made weights of other shapes.
    """
    pairs = list(zip(source.weights, target.weights, strict=False))
    shapes = [[tuple(variable.shape) for variable in m.weights] for m in (source, target)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"The stages have made weights of the shapes {shapes[1]}, but {shapes[0]} before. Make "
            "the layers outside of the stages, so that all calls use the same layers."
        )
    for old, new in pairs:
        if old is not new:
            new.assign(np.asarray(old.value))
