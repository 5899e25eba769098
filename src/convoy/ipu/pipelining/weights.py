"""Which calls of `pipeline` go on with which weights.

A graph of TensorFlow's is built once and run many times. Here functions are called many times, so
what they have built is kept with them: with the stages, and with the function in which they are
made each time anew, if `ipu_compiler.compile` or a strategy runs it.
"""

from __future__ import annotations

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
"""The weights of the pipeline whose first stage was last made by some lines, by identity."""


class Trained:
    """The networks that some stages have built: to train or not, for some shapes and options."""

    def __init__(self, stages: Stages) -> None:
        first = stages[0][0]
        self._code = first.__code__ if isinstance(first, FunctionType) else None
        self._networks: dict[Hashable, Network] = {}
        self._newest: Network | None = None

    def network(self, key: Hashable, build: Callable[[], Network]) -> Network:
        """Return the network for a key, with the weights that the last one was left with."""
        if key not in self._networks:
            self._networks[key] = build()
        network, newest = self._networks[key], self._newest
        if newest is None:
            self._notice_new_weights(network)
        elif network is not newest:
            _copy(newest.model, network.model)
        self._newest = network
        return network

    def _notice_new_weights(self, network: Network) -> None:
        """Say it if the same lines have made stages before, with other weights."""
        if self._code is None:
            return
        weights = {id(variable) for variable in network.model.weights}
        before = _made_by.get(self._code)
        if before and not before & weights:
            notice.once(
                "The stages of a pipeline were made anew, and with them their weights. Define them "
                "once, or make layers outside of them, if they are to go on with the same."
            )
        _made_by[self._code] = weights


def trained_with(stages: Stages, host: Host | None) -> Trained:
    """Return what stages have built; or what was built in this place of a function that runs."""
    own: Trained = _kept_with(stages[0][0]).setdefault(stages, Trained(stages))
    if host is None:
        return own
    return _kept_with(host.origin).setdefault(host.pipelines, own)


def same(function: Callable[..., Any] | None) -> Hashable:
    """Return what is equal for functions that the same lines have made around the same values."""
    if not isinstance(function, FunctionType):
        return function
    around = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*around, *(function.__defaults__ or ())]
    return function.__code__, tuple(v if isinstance(v, Hashable) else id(v) for v in values)


def _kept_with(function: Callable[..., Any]) -> dict[Hashable, Trained]:
    """Return what is kept as long as a function, or the object whose method it is."""
    owner: Any = getattr(function, "__self__", function)
    # Not through `setattr`: Keras would take it for a change of a layer's state.
    attributes = getattr(owner, "__dict__", {})
    return attributes.setdefault(_ATTRIBUTE, {}) if isinstance(attributes, dict) else {}


def _copy(source: keras.Model, target: keras.Model) -> None:
    """Give a network the weights of another one of the same stages.

    Raises:
        ValueError: if these have made other weights this time.
    """
    pairs = list(zip(source.weights, target.weights, strict=False))
    shapes = [[tuple(variable.shape) for variable in m.weights] for m in (source, target)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"The stages have made weights of the shapes {shapes[1]}, but {shapes[0]} before. Make "
            "the layers outside of them, so that they are the same."
        )
    for old, new in pairs:
        if old is not new:
            new.assign(np.asarray(old.value))
