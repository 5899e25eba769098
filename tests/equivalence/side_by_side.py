"""Runs the same thing under stock Keras and under Convoy, and compares what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import convoy
import jax
import keras
import ml_dtypes
import numpy as np
import pytest
from keras.src.backend.common.dtypes import BIT64_TO_BIT32_DTYPE

SEED = 7

# Both sides compute in float32, whose unit roundoff is 6e-8, but XLA may sum in another order
# inside a loop than outside of one. Ten to thirty updates of a well-conditioned model let that
# grow to a few 1e-6 at most. This is the one tolerance of these tests; it is not loosened.
RTOL = 1e-5
ATOL = 1e-6

# Half precision rounds at 2^-11 (float16) or 2^-8 (bfloat16), and rounds differently where XLA
# fuses differently. A value may then end up one unit away, and an update carries that on.
HALF_TOLERANCE = {
    "mixed_float16": 2.0**-10,
    "mixed_bfloat16": 2.0**-7,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}

# In float64 the order of sums changes 1e-16, and an ill-conditioned network makes at most 1e-12 of
# it. Another computation would differ by far more.
FLOAT64_TOLERANCE = 1e-9

# Weights that are rounded otherwise are rounded once, but every layer rounds.
SENSITIVITIES = 10

Make = Callable[[Any], keras.Model]
Run = Callable[[keras.Model], Any]

WAYS = ("scope", "prepare")

# The batches of stock Keras: whole, divided over replicas, and divided into micro-batches.
STRATEGIES: dict[str, dict[str, Any]] = {
    "one device": {},
    "two replicas": {"devices": 2, "batch": "global"},
    "accumulation": {"gradient_accumulation": 2, "batch": "global"},
}
# `make test` compares on one device and on replicas, `make test-all` with accumulation too.
IN_EVERY_STRATEGY = pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(strategy, id=name, marks=[pytest.mark.slow] * (name == "accumulation"))
        for name, strategy in STRATEGIES.items()
    ],
)

RUN_HOOKS = [f"{run}_{end}" for run in ("train", "test", "predict") for end in ("begin", "end")]


@contextmanager
def in_float64() -> Iterator[None]:
    """Let Keras compute in float64 throughout, where the order of a sum changes nothing that shows.

    Keras computes in float32 wherever float64 meets float32, as in batch normalisation; not here.
    """
    narrowed = BIT64_TO_BIT32_DTYPE.pop("float64")
    keras.config.set_floatx("float64")
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        BIT64_TO_BIT32_DTYPE["float64"] = narrowed
        keras.config.set_floatx("float32")
        jax.config.update("jax_enable_x64", False)
        jax.clear_caches()


def begin(seed: int = SEED) -> None:
    """Put names and random numbers back to the start, so that two runs see the same."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(seed)


class Recorder(keras.callbacks.Callback):
    """Writes down every hook that is called, with its number and its logs.

    Args:
        batches: whether hooks of batches are recorded. They are called once per execution, so they
            can be compared only if both sides have the same `steps_per_execution`.
    """

    def __init__(self, batches: bool = True) -> None:
        super().__init__()
        self.batches = batches
        self.calls: list[tuple[str, int | None, dict[str, Any]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return partial(self._record, name)
        return super().__getattribute__(name)

    def _record(self, name: str, number: Any = None, logs: Any = None) -> None:
        if "batch" in name and not self.batches:
            return
        if name.removeprefix("on_") in RUN_HOOKS:  # which have no number
            number, logs = None, number
        logs = {k: v for k, v in (logs or {}).items() if k != "outputs"}
        self.calls.append((name, number, logs))


def make_stock(make: Make, seed: int = SEED) -> keras.Model:
    begin(seed)
    return make(1)


def make_convoy(
    make: Make, steps: Any = 3, *, way: str = "scope", seed: int = SEED, **strategy: Any
) -> keras.Model:
    """Make the same model on the engine. One device unless told: `CONVOY_DEVICES` is four here."""
    chosen = convoy.Strategy(**({"devices": 1} | strategy))
    begin(seed)
    if way == "prepare":
        return convoy.prepare(make(steps), chosen)
    with chosen.scope():
        return make(steps)


def state(model: keras.Model) -> dict[str, np.ndarray]:
    """Return every variable of model and optimizer: weights, statistics, seeds, moments."""
    variables = list(model.variables)
    if model.compiled and model.optimizer is not None:
        variables += list(model.optimizer.variables)
    return {f"{n} {v.path}": np.asarray(v.value) for n, v in enumerate(variables)}


def assert_same(
    actual: Any, expected: Any, *, exact: bool = False, tolerance: float | None = None
) -> None:
    """Compare two structures of numbers: the same keys, shapes and types, and close values."""
    _compare(actual, expected, exact, tolerance, "")


def _compare(actual: Any, expected: Any, exact: bool, tolerance: float | None, at: str) -> None:
    if isinstance(expected, dict):
        assert list(actual) == list(expected), f"keys {at}"
        for key in expected:
            _compare(actual[key], expected[key], exact, tolerance, f"{at}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert type(actual) is type(expected), at
        assert len(actual) == len(expected), at
        for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
            _compare(a, e, exact, tolerance, f"{at}[{position}]")
    elif isinstance(expected, str) or expected is None:
        assert actual == expected, at
    else:
        _compare_numbers(actual, expected, exact, tolerance, at)


def _compare_numbers(
    actual: Any, expected: Any, exact: bool, tolerance: float | None, at: str
) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, at
    assert actual.shape == expected.shape, at
    if expected.dtype == ml_dtypes.bfloat16:
        # NumPy does not take it for a kind of number.
        actual, expected = actual.astype("float32"), expected.astype("float32")
    if exact or not np.issubdtype(expected.dtype, np.inexact):
        np.testing.assert_array_equal(actual, expected, err_msg=at)
    else:
        rtol, atol = (tolerance, tolerance) if tolerance else (RTOL, ATOL)
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=at)


def assert_equivalent(
    make: Make,
    run: Run,
    steps: Any = 3,
    *,
    way: str = "scope",
    exact: bool = False,
    tolerance: float | None = None,
    **strategy: Any,
) -> None:
    """Run the same under stock Keras and under Convoy; outcome and state must be the same.

    Args:
        make: makes and compiles a model, given `steps_per_execution`. Stock Keras gets 1: with
            more, it runs past the end of an epoch that is not a multiple.
        run: what to do with it; returns what is to be compared beside the model's state.
        steps: `steps_per_execution` under Convoy.
        way: how the engine gets the model: made in a scope, or prepared.
        exact: ask for equality bit by bit.
        tolerance: that of half precision, where the model computes in it.
        **strategy: arguments of `Strategy`.
    """
    stock = make_stock(make)
    expected = run(stock), state(stock)
    model = make_convoy(make, steps, way=way, **strategy)
    actual = run(model), state(model)
    assert_same(actual[0], expected[0], exact=exact, tolerance=tolerance)
    assert_same(actual[1], expected[1], exact=exact, tolerance=tolerance)


def assert_within_rounding(
    make: Make, run: Run, steps: Any = 3, *, draws: int = 1, **strategy: Any
) -> None:
    """Train a network that amplifies rounding under stock Keras and under Convoy, in float32.

    History and state may differ by as much as stock Keras itself moves when its weights are rounded
    otherwise, times `SENSITIVITIES`, and by the tolerance of the other tests.

    Args:
        make: as for `assert_equivalent`. Its optimizer must begin with zeros.
        run: trains the model; returns the history.
        steps: `steps_per_execution` under Convoy.
        draws: number of times that the weights are rounded otherwise. The largest move counts.
        **strategy: arguments of `Strategy`.
    """

    def outcome(model: keras.Model) -> dict[str, np.ndarray]:
        return {"history": np.asarray(list(run(model).values())), **state(model)}

    stock = make_stock(make)
    start = [np.asarray(variable.value) for variable in stock.variables]
    expected, moved = outcome(stock), []
    for seed in range(1, draws + 1):
        rng = np.random.default_rng(seed)
        # The same model again: its program is compiled already.
        for variable, value in zip(stock.variables, start, strict=True):
            variable.assign(rounded_otherwise(value, rng))
        for variable in stock.optimizer.variables:
            if variable is not stock.optimizer.learning_rate:
                variable.assign(np.zeros(variable.shape, variable.dtype))
        moved.append(outcome(stock))
    del stock
    actual = outcome(make_convoy(make, steps, **strategy))
    assert list(actual) == list(expected)
    for key, value in expected.items():
        allowed = RTOL * np.linalg.norm(value.ravel()) + ATOL * np.sqrt(value.size)
        allowed += SENSITIVITIES * max(_distance(other[key], value) for other in moved)
        assert _distance(actual[key], value) <= allowed, key


def assert_states_within_half_precision(
    actual: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    in_float32: dict[str, np.ndarray],
    tolerance: float,
) -> None:
    """Compare states after training a network whose gradients amplify the rounding to 16 bits.

    A kernel that fuses operations rounds once where stock Keras rounds after each of them, so a
    ReLU of a value near zero can take the other side. A value may therefore differ by the tolerance
    of half precision, and by as much as rounding to 16 bits moves any value of the same array in
    stock Keras.

    Args:
        actual: the state under Convoy.
        expected: the state under stock Keras with the same policy.
        in_float32: the state under stock Keras in float32.
        tolerance: that of half precision.
    """
    assert list(actual) == list(expected)
    for key, value in expected.items():
        assert actual[key].dtype == value.dtype, key
        if not np.issubdtype(value.dtype, np.inexact):
            np.testing.assert_array_equal(actual[key], value, err_msg=key)
            continue
        moved = 0.0
        if key in in_float32:
            moved = float(np.abs(value.astype("float64") - in_float32[key]).max(initial=0.0))
        np.testing.assert_allclose(
            actual[key], value, rtol=tolerance, atol=tolerance + moved, err_msg=key
        )


def rounded_otherwise(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move each number to one of its two neighbours, or leave it."""
    if not np.issubdtype(value.dtype, np.floating):
        return value
    toward = rng.choice([-np.inf, np.inf], value.shape).astype(value.dtype)
    moved = np.nextafter(value, toward)
    return np.where((rng.random(value.shape) < 2 / 3) & (value != 0), moved, value)


def _distance(left: np.ndarray, right: np.ndarray) -> float:
    difference = np.asarray(left, "float64") - np.asarray(right, "float64")
    return float(np.linalg.norm(difference.ravel()))
