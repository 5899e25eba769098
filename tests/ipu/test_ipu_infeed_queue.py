import numpy as np
import pytest
from convoy import ipu

repeat = ipu.loops.repeat
Infeed = ipu.ipu_infeed_queue.IPUInfeedQueue


def test_a_queue_goes_on_where_it_was():
    queue = Infeed([np.float32(number) for number in (1, 2, 3, 4)])
    assert repeat(2, lambda total, x: total + x, np.float32(0), queue) == 3
    assert repeat(2, lambda total, x: total + x, np.float32(0), queue) == 7
    with pytest.raises(RuntimeError, match="ended after 4 elements"):
        repeat(1, lambda total, x: total + x, np.float32(0), queue)


def test_counts_the_arrays_of_an_element():
    queue = Infeed([{"a": np.zeros(2), "b": np.zeros(3)}])
    assert queue.number_of_tuple_elements == 2
    assert queue.prefetch_depth == Infeed([], prefetch_depth=0).prefetch_depth == 3
    assert not queue.dequeued
    repeat(1, lambda a, b: None, None, queue)
    assert queue.dequeued


def test_refuses_numbers_and_elements_that_do_not_fit():
    with pytest.raises(ValueError, match="Pass 1 to 255"):
        Infeed([], prefetch_depth=256)
    with pytest.raises(ValueError, match="device_ordinal=-1"):
        Infeed([], device_ordinal=-1)
    with pytest.raises(ValueError, match="was removed"):
        Infeed([]).get_next()
    with pytest.raises(ValueError, match="differ in shape"):
        repeat(2, lambda x: None, None, Infeed([np.zeros(2), np.zeros(1)]))


def test_elements_of_later_programs_have_the_shape_of_the_first():
    queue = Infeed([np.zeros(2), np.zeros(1)])
    assert queue.take(1).shape == (1, 2)
    with pytest.raises(ValueError, match=r"differ in shape: \(1,\) after \(2,\)"):
        queue.take(1)
