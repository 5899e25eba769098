import threading

import jax.numpy as jnp
from convoy.report.event_log import EventLog
from convoy.report.threads import CallWaiter, DeviceCall, PeriodicWriter, scalars


def test_calls_begin_when_the_one_before_has_ended():
    log = EventLog()
    waiter = CallWaiter(log)
    for step in (1, 2):
        waiter.put(DeviceCall("train", 0, log.began, 4, 32, {"loss": jnp.array(1.0 * step)}))
    waiter.flush()
    part, _ = log.take()
    (_, _, _, first_end, *_), (_, _, second_begin, *_) = part["calls"]
    assert second_begin == first_end
    assert part["metrics"][0][3] == {"loss": 1.0}
    assert log.summary()["devices"]["train"]["steps"] == 8
    waiter.close()
    waiter.flush()  # It does not wait for a thread that has ended.


def test_a_writer_writes_regularly_on_request_and_at_its_end():
    regularly, written = threading.Event(), []
    writer = PeriodicWriter(lambda: written.append(1), regularly.set, seconds=0.01)
    assert regularly.wait(600)
    writer.write_now()
    assert written == [1]
    writer.close()
    assert written == [1, 1]


def test_only_scalars_of_logs_are_kept():
    logs = {"loss": jnp.array(0.5), "count": 3, "matrix": jnp.ones((2, 2)), "name": "x"}
    assert scalars(logs, {}) == {"loss": 0.5, "count": 3.0}
    assert scalars(logs, {"loss": "logged loss"}) == {"logged loss": 0.5, "count": 3.0}
    assert scalars([1, 2], {}) == {}
