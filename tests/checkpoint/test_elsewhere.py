"""A run goes on with another number of replicas, of stages, or with the data elsewhere."""

import convoy
import keras
import numpy as np
import pytest
from convoy.engine.step import shard_state
from keras import layers

from .conftest import StopAt, StopError, Subject

# As between stock Keras and Convoy: float32, summed in another order.
RTOL, ATOL = 1e-5, 1e-6


def network():
    """No dropout: each replica draws its own. No batch norm: stages compute it by micro-batch."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, "tanh"),
            layers.Dense(8, "tanh", name="second"),
            layers.Dense(3, "softmax"),
        ]
    )


def subject(batch, stages=False, **strategy):
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    made = Subject(network, optimizer, batch=batch, **strategy)
    if stages:
        convoy.split(made.model, ["second"])
    return made


def go_on(first, second, tmp_path, **settings):
    """Stop one subject in its second epoch, and have another one go on; return both outcomes."""
    expected = first.run(**settings)
    with pytest.raises(StopError):
        first.run(convoy.Checkpoints(tmp_path, every=2), StopAt(1, 2), **settings)
    actual = second.run(convoy.Checkpoints(tmp_path, every=2), spoil=True, **settings)
    return expected, actual


def assert_close(actual, expected):
    assert actual[1] == expected[1]
    for name, values in expected[0].items():
        np.testing.assert_allclose(actual[0][name], values, rtol=RTOL, atol=ATOL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "now"),
    [
        ((8, {}), (4, {"devices": 2})),
        ((4, {"devices": 2}), (8, {})),
        ((8, {}), (4, {"gradient_accumulation": 2})),
        ((4, {"devices": 2, "shard": "optimizer"}), (2, {"devices": 4})),
        ((4, {"devices": 2, "shard": "weights"}), (2, {"devices": 4, "shard": "weights"})),
        ((2, {"devices": 4, "shard": "weights"}), (8, {})),
        ((8, {}), (4, {"devices": 2, "shard": "weights"})),
        ((4, {"gradient_accumulation": 2}), (4, {"gradient_accumulation": 2, "stages": True})),
    ],
    ids=str,
)
def test_divided_in_another_way(tmp_path, then, now, monkeypatch):
    monkeypatch.setattr(shard_state, "REPLICATED_ELEMENTS", 0)
    settings = {"devices": 2} if now[1].get("stages") else {}
    first, second = subject(then[0], **then[1]), subject(now[0], **settings, **now[1])
    # One counts micro-batches as steps and the other does not: the losses are those of samples.
    expected, actual = go_on(first, second, tmp_path, validate=False)
    assert_close(actual, expected)


@pytest.mark.slow
def test_with_data_that_is_streamed_now_not_a_bit_changes(tmp_path):
    expected, actual = go_on(subject(8), subject(8, data_budget=0), tmp_path)
    assert actual == expected


def test_a_batch_that_does_not_reach_the_place_is_refused(plain, tmp_path):
    with pytest.raises(StopError):
        plain.run(convoy.Checkpoints(tmp_path, every=2), StopAt(0, 2))
    match = "saved after 16 .* not a multiple of the 12 that a weight update now takes"
    with pytest.raises(ValueError, match=match):
        plain.run(convoy.Checkpoints(tmp_path), batch_size=12)
