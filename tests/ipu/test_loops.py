import numpy as np
import pytest
from convoy import ipu

repeat, while_loop = ipu.loops.repeat, ipu.loops.while_loop
Infeed = ipu.ipu_infeed_queue.IPUInfeedQueue
Outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue
Mode = ipu.ipu_outfeed_queue.IPUOutfeedMode


def numbers(count):
    return [np.float32(number) for number in range(1, count + 1)]


def test_carries_values_from_one_time_to_the_next():
    total, power = repeat(3, lambda a, b: (a + b, b * 2), [np.float32(0), np.float32(1)])
    assert (total, power) == (7, 8)
    assert repeat(3, lambda a: a + 1, np.float32(0)) == 3
    assert repeat(3, lambda: None) is None


def test_takes_elements_as_arguments():
    pairs = [(np.float32(a), np.float32(10 * a)) for a in (1, 2)]
    assert repeat(2, lambda total, a, b: total + a + b, np.float32(0), Infeed(pairs)) == 33
    named = [{"label": np.float32(a), "image": np.float32(0)} for a in (1, 2)]
    assert repeat(2, lambda total, image, label: total + label, np.float32(0), Infeed(named)) == 3


def test_replicas_take_turns_at_the_queue(configure):
    configure(2)
    infeed, outfeed = Infeed(numbers(4)), Outfeed()

    def body(total, x):
        outfeed.enqueue(x)
        return total + ipu.cross_replica_ops.cross_replica_sum(x)

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        results = ipu.ipu_compiler.compile(
            lambda: repeat(2, body, np.float32(0), infeed), inputs=[]
        )
    assert results == (10,)
    assert outfeed.dequeue().tolist() == [[1, 2], [3, 4]]
    assert outfeed.dequeue() == []


def test_a_body_may_return_what_a_queue_does():
    outfeed = Outfeed()
    assert repeat(2, lambda x: (x + 1, outfeed.enqueue({"x": x})), np.float32(0)) == 2
    assert outfeed.dequeue()["x"].tolist() == [0, 1]
    assert repeat(2, lambda: outfeed.enqueue({"x": np.float32(3)})) is None
    assert outfeed.dequeue()["x"].tolist() == [3, 3]
    with pytest.raises(ValueError, match=r"before a carried value\. Return the values first"):
        repeat(2, lambda x: (outfeed.enqueue({"x": x}), x), np.float32(0))


def test_runs_as_long_as_a_condition_holds():
    assert while_loop(lambda x: x < 10, lambda x: x * 2, np.float32(1)) == 16
    limited = while_loop(lambda x: x < 10, lambda x: x * 2, np.float32(1), maximum_iterations=2)
    assert limited == 4


def test_refuses_bodies_that_return_something_else():
    with pytest.raises(
        TypeError, match=r"returned 2 values, but 1 are carried\. Return the same number"
    ):
        repeat(2, lambda x: (x, x), np.float32(0))
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        repeat(2, lambda x: x, np.float32(0), Infeed(numbers(2)))
    with pytest.raises(
        TypeError, match=r"returned 0 values, but 1 are carried\. Return the same number"
    ):
        while_loop(lambda x: x < 1, lambda x: None, np.float32(0))
    with pytest.raises(TypeError, match=r"returned int32\[\] for a value that is float32\[\]"):
        repeat(2, lambda x: np.int32(1), np.float32(0))


def test_a_condition_has_no_queue():
    with pytest.raises(NotImplementedError, match=r"Use repeat\(\)"):
        while_loop(lambda: True, lambda: None, None, Infeed([]))
