import numpy as np
import pytest
from convoy import ipu

repeat = ipu.loops.repeat
Outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue
Mode = ipu.ipu_outfeed_queue.IPUOutfeedMode


def test_an_outfeed_keeps_all_or_the_last():
    everything, last = Outfeed(), Outfeed(outfeed_mode=Mode.LAST)

    def body(x):
        everything.enqueue({"x": x})
        last.enqueue(x)
        return x + 1

    repeat(2, lambda x: repeat(2, body, x), np.float32(0))
    repeat(1, body, np.float32(9))
    assert everything.dequeue()["x"].tolist() == [0, 1, 2, 3, 9]
    assert last.dequeue() == 9
    repeat(2, body, np.float32(0))
    assert [element["x"] for element in everything] == [0, 1]
    with pytest.raises(RuntimeError, match="keeps only the LAST"):
        iter(last)


def test_an_outfeed_of_replicas_has_the_last_of_each(configure):
    configure(2)
    last = Outfeed(outfeed_mode=Mode.LAST)

    def body(x):
        last.enqueue((x, ipu.replication_ops.replication_index()))
        return x + 1

    repeat(3, body, np.float32(0))
    values, replicas = last.dequeue()
    assert (values.tolist(), replicas.tolist()) == ([2, 2], [0, 1])


def test_refuses_numbers_and_calls_that_do_not_fit():
    with pytest.raises(ValueError, match="buffer_depth=0"):
        Outfeed(buffer_depth=0)
    with pytest.raises(ValueError, match="'most' is not a valid IPUOutfeedMode"):
        Outfeed("most")
    with pytest.raises(ValueError, match="outside of a program"):
        Outfeed().enqueue(1)
    with pytest.raises(ValueError, match="Nothing was put"):
        Outfeed().dequeue()
    twice = Outfeed()
    with pytest.raises(ValueError, match="twice"):
        repeat(1, lambda x: (twice.enqueue(x), twice.enqueue(x), x)[2], np.float32(0))
