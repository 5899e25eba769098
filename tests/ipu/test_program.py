"""Functions as programs on devices: data of infeeds, results of outfeeds, and the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy import cross_replica
from convoy.ipu import program
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
from convoy.ipu.ipu_outfeed_queue import IPUOutfeedQueue


def numbers(count):
    return IPUInfeedQueue([np.float32(number) for number in range(count)])


def test_the_outputs_of_a_function_are_those_of_one_device():
    devices = jax.devices()[:1]
    total = program.run(lambda a, b: a + b, [np.float32(1), np.float32(2)], devices)
    assert total == 3


def test_replicas_take_elements_in_turns_and_put_their_own_results():
    infeed, outfeed = numbers(4), IPUOutfeedQueue()

    def double():
        x = program.tape().data(infeed, 2)
        program.tape().put(outfeed, 2 * x)
        return jnp.float32(0)

    program.run(double, None, jax.devices()[:2])
    outfeed.enqueued = True
    assert outfeed.dequeue().tolist() == [[0, 2], [4, 6]]
    assert infeed.dequeued


def test_elements_are_read_only_for_the_run_and_not_for_its_shapes():
    infeed = numbers(2)
    program.run(lambda: program.tape().data(infeed, 2).sum(), None, jax.devices()[:1])
    with pytest.raises(Exception, match="ended"):
        infeed.take(1)


def test_an_outfeed_is_used_once_in_a_program():
    outfeed = IPUOutfeedQueue()

    def twice(x):
        outfeed.enqueue(x)
        outfeed.enqueue(x)
        return x

    with pytest.raises(ValueError, match="uses an outfeed queue twice"):
        program.run(twice, [np.float32(1)], jax.devices()[:1])


def test_there_is_no_tape_outside_of_a_program():
    assert program.tape() is None
    with pytest.raises(ValueError, match="outside of a program"):
        IPUOutfeedQueue().enqueue(np.float32(1))


def test_a_function_that_needs_the_host_runs_there():
    hosts = []

    def function(x):
        if program.host() is None:
            raise program.NeedsHostError
        hosts.append(program.host())
        return x + 1

    devices = jax.devices()[:2]
    assert program.run(function, [np.float32(1)], devices, reduction="mean") == 2
    (host,) = hosts
    assert (host.origin, host.devices, host.reduction) == (function, devices, "mean")
    assert program.host() is None


def test_replicas_can_exchange_values():
    infeed = numbers(2)

    def total():
        return cross_replica.sum(program.tape().data(infeed, 1)[0])

    assert program.run(total, None, jax.devices()[:2]) == 1
