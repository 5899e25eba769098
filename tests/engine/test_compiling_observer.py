"""The base of observers that compile programs and run none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.engine.compiling_observer import CompilingObserver, make_results
from jax.sharding import SingleDeviceSharding


class Compiled(CompilingObserver):
    """An observer that notes what is compiled, and how large device calls may be."""

    def __init__(self, steps=None):
        self.names, self.steps = [], steps

    def compile(self, name, program, arguments):
        self.names.append(name)
        traced = program.trace(*arguments)
        return make_results(traced, traced.lower().compile(), lambda *kind: kind)

    def max_steps(self, mode):
        return self.steps


class Feed:
    """A feed without end, whose chunks are their numbers of steps."""

    position = "position"

    def next(self, max_steps):
        return max_steps

    def prefetch(self, max_steps):
        raise AssertionError("There is nothing to prefetch.")


def test_a_program_is_compiled_once_for_each_shape_type_and_device():
    observer = Compiled()
    doubled = observer.program("double", jax.jit(lambda x: 2 * x))
    first, second = jax.devices()[:2]
    for x in (np.ones(3), np.zeros(3), jnp.ones(4, "float32"), jnp.ones(4, "bfloat16")):
        doubled(x)
    for device in (first, first, second):
        (shape, dtype, sharding) = doubled(jax.device_put(jnp.ones((2, 2)), device))
        assert (shape, dtype, sharding) == ((2, 2), jnp.float32, SingleDeviceSharding(device))
    assert observer.names == ["double"] * 5


def test_a_program_keeps_the_attributes_of_the_function():
    program = Compiled().program("double", jax.jit(lambda x: 2 * x))
    assert program.trace(jnp.ones(3)).out_info.shape == (3,)


@pytest.mark.parametrize(("limit", "steps"), [(None, 8), (2, 2), (100, 8)])
def test_an_epoch_ends_after_its_first_device_call(limit, steps):
    runner, callbacks = object(), object()
    found, feed, kept = Compiled(limit).epoch("train", runner, Feed(), callbacks)
    assert (found, kept) == (runner, callbacks)
    assert feed.next(8) == steps
    feed.prefetch(8)
    assert feed.next(8) is None
    assert feed.position == "position"
