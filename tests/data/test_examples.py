"""`tf.train.Example` is written as TensorFlow writes it, and read with care."""

import numpy as np
import pytest
from convoy.data import examples
from convoy.data.records import DamagedDataError

FEATURES = {
    "image/encoded": [b"\xff\xd8", b""],
    "numbers": [1, 300, -1, 2**40],
    "shares": [0.5, -1.25],
    "none": [],
}


def test_an_example_comes_back():
    data = examples.encode(FEATURES)
    assert examples.decode(data, FEATURES) == FEATURES
    assert examples.decode(data, {"shares"}) == {"shares": [0.5, -1.25]}


def test_an_example_has_the_bytes_that_tensorflow_writes():
    # What tf.train.Example(...).SerializeToString(deterministic=True) returns for these.
    assert examples.encode({"a": [3]}).hex() == "0a0c0a0a0a016112051a030a0103"
    assert examples.encode({"b": [b"x"]}).hex() == "0a0c0a0a0a016212050a030a0178"
    assert examples.encode({"c": [1.5]}).hex() == "0a0f0a0d0a0163120812060a040000c03f"


def test_numbers_that_are_not_packed_are_read_too():
    # int64_list { value: 5 value: 300 }, each with a tag of its own.
    apart = bytes.fromhex("0a0e0a0c0a016112071a05080508ac02")
    assert examples.decode(apart, {"a"}) == {"a": [5, 300]}


@pytest.mark.parametrize("length", [1, 5, 12])
def test_an_example_cut_short_is_refused(length):
    with pytest.raises(DamagedDataError, match=r"it is not a tf\.train\.Example"):
        examples.decode(examples.encode(FEATURES)[:-length], FEATURES)


def test_chance_is_refused_or_read_but_never_crashes(rng):
    for _ in range(300):
        data = rng.integers(0, 256, rng.integers(1, 30), dtype=np.uint8).tobytes()
        try:
            examples.decode(data, {"a"})
        except DamagedDataError:
            continue
