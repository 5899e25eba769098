import contextlib
import gc
import json
import sys
import threading

import numpy as np
import pytest
from convoy.serving import gil, json_text, json_values, tensor_protos
from convoy.serving.signature import TensorSpec
from convoy.serving.tensorflow_serving_pb2 import TensorProto


@pytest.mark.parametrize("pauses", [False, True])
def test_another_thread_runs_while_a_thread_pauses(pauses):
    ready, ran, seen = threading.Event(), threading.Event(), []

    def wait():
        ready.wait()
        ran.set()

    def work():
        with gil.long_work() if pauses else contextlib.nullcontext():
            ready.set()
            for _ in range(100_000):
                gil.let_others_run()
            seen.append(ran.is_set())

    threads = [threading.Thread(target=function) for function in (wait, work)]
    interval = sys.getswitchinterval()
    # Python takes the GIL from no thread in this time.
    sys.setswitchinterval(100)
    try:
        for thread in threads:
            thread.start()
        threads[1].join()
    finally:
        sys.setswitchinterval(interval)
    threads[0].join()
    assert seen == [pauses]


def test_long_work_is_not_interrupted_by_garbage_collection(monkeypatch):
    monkeypatch.setattr(gil, "COLLECT_SECONDS", 1e9)
    monkeypatch.setattr(gil, "_collected", 0.0)
    assert gc.isenabled()
    with gil.long_work():
        with gil.long_work():
            assert not gc.isenabled()
        # It goes on in another thread.
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_is_collected_even_if_long_work_never_ends(monkeypatch):
    monkeypatch.setattr(gil, "COLLECT_SECONDS", 0.0)
    with gil.long_work():
        with gil.long_work():
            assert not gc.isenabled()
        assert gc.isenabled()
    assert gc.isenabled()


SPEC = TensorSpec("x", "float32", (1000,))
VALUES = np.linspace(0, 1, 200_000, dtype=np.float32).reshape(200, 1000)
LISTS = VALUES.tolist()
LONG = {
    "parse": (json_text, lambda: json_text.loads(json.dumps(LISTS))),
    "write": (json_text, lambda: json_text.dumps(LISTS)),
    "free": (json_text, lambda: json_text.free(VALUES.tolist())),
    "read lists": (json_values, lambda: json_values.to_array(LISTS, SPEC, 200)),
    "read one list": (json_values, lambda: json_values.to_array([LISTS[0] * 200], SPEC, 200)),
    "make lists": (json_values, lambda: json_values.to_json(VALUES)),
    "make one list": (json_values, lambda: json_values.to_json(VALUES.reshape(1, -1))),
    "write a message": (tensor_protos, lambda: tensor_protos.to_proto(VALUES, packed=False)),
}


@pytest.mark.parametrize("work", LONG)
def test_long_work_is_done_in_steps(monkeypatch, work):
    module, function = LONG[work]
    steps = []
    monkeypatch.setattr(module, "let_others_run", lambda: steps.append(1))
    function()
    assert len(steps) > 40


def test_a_long_message_is_read_in_steps(monkeypatch):
    steps = []
    monkeypatch.setattr(tensor_protos, "let_others_run", lambda: steps.append(1))
    proto = TensorProto(dtype=1, float_val=VALUES.reshape(-1).tolist())
    for size in VALUES.shape:
        proto.tensor_shape.dim.add(size=size)
    np.testing.assert_array_equal(tensor_protos.to_array(proto, SPEC, 200), VALUES)
    assert len(steps) > 40
