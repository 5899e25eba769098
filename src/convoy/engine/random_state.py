"""The random generators of the host, from which the order of data is drawn."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from convoy import distributed, keras_bridge
from convoy.types import Json, PyTree


class RandomState(NamedTuple):
    """The state of Python's, NumPy's and Keras's global generators."""

    python: tuple
    numpy: PyTree
    keras: list[int] | None

    def to_json(self) -> Json:
        version, words, gauss = self.python
        python = {"version": version, "words": _hex(np.array(words, np.uint32)), "gauss": gauss}
        return {"python": python, "numpy": _encode(self.numpy), "keras": self.keras}

    @classmethod
    def from_json(cls, state: Json) -> RandomState:
        python = state["python"]
        words = tuple(int(word) for word in _words(python["words"]))
        generator = python["version"], words, python["gauss"]
        return cls(generator, _decode(state["numpy"]), state["keras"])


def capture() -> RandomState:
    return RandomState(
        random.getstate(), np.random.get_state(legacy=False), keras_bridge.global_seed()
    )


def restore(state: RandomState) -> None:
    """Make the global generators continue from a state."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    keras_bridge.set_global_seed(state.keras)


def use_state_of_first_process() -> None:
    """Set the generators of all processes to the state of the first process."""
    restore(RandomState.from_json(distributed.from_first(capture().to_json())))


@contextlib.contextmanager
def as_of(state: RandomState) -> Iterator[None]:
    """Use an earlier state in the block, and restore the current one after it."""
    now = capture()
    restore(state)
    try:
        yield
    finally:
        restore(now)


def _hex(array: np.ndarray) -> str:
    return array.astype("<u4").tobytes().hex()


def _words(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), "<u4").astype(np.uint32)


def _encode(value: PyTree) -> PyTree:
    if isinstance(value, dict):
        return {name: _encode(part) for name, part in value.items()}
    return {"words": _hex(value)} if isinstance(value, np.ndarray) else value


def _decode(value: PyTree) -> PyTree:
    if not isinstance(value, dict):
        return value
    if set(value) == {"words"}:
        return _words(value["words"])
    return {name: _decode(part) for name, part in value.items()}
