"""Calls that send a part of their message, or none."""

import contextlib
import threading

import convoy
import pytest
from convoy.serving import tensorflow_serving_pb2 as messages
from tests.launch.running import wait_until
from tests.serving.http2 import RawConnection, message_start
from tests.serving.models import half_plus
from tests.serving.processes import serving

pytestmark = pytest.mark.integration

MEMORY = 64 << 20
# A message of an eighth of the memory is accepted.
SIZE = MEMORY // 8 - 1000
CONNECTIONS, CALLS = 4, 16
STREAMS = range(1, 2 * CALLS, 2)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    convoy.export(half_plus(2), folder / "half", batch_sizes=[1, 4])
    words = ("--try-versions", "false", "--max-memory-bytes", str(MEMORY))
    with serving(folder, *words, half=folder / "half") as process:
        wait_until(lambda: predict(process) == ("OK", [2.5]))
        yield process
        assert process.stop() == 0


def predict(server):
    request = messages.PredictRequest()
    request.model_spec.name = "half"
    tensor = request.inputs["x"]
    tensor.dtype = 1
    tensor.tensor_shape.dim.add(size=1)
    tensor.float_val.append(1.0)
    code, answer = server.grpc("Predict", request.SerializeToString())
    if code != "OK":
        return code, answer
    return code, list(messages.PredictResponse.FromString(answer).outputs["output_0"].float_val)


def test_many_large_messages_do_not_take_more_memory_than_the_budget(server):
    content = message_start(SIZE) + bytes(SIZE - 1)
    before = server.peak_megabytes()
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(RawConnection(server.grpc_port)) for _ in range(CONNECTIONS)
        ]
        for connection in connections:
            for stream in STREAMS:
                connection.call(stream)
        threads = [
            threading.Thread(target=connection.send, args=(dict.fromkeys(STREAMS, content), 1))
            for connection in connections
        ]
        for thread in threads:
            thread.start()
        # Others are served meanwhile.
        assert predict(server) == ("OK", [2.5])
        for thread in threads:
            thread.join()
        assert predict(server) == ("OK", [2.5])
    # The messages have eight times the size of the budget.
    assert server.peak_megabytes() - before < 1.5 * MEMORY / 2**20


def test_calls_that_send_nothing_do_not_keep_others_from_being_answered(server):
    with RawConnection(server.grpc_port) as connection:
        for stream in STREAMS:
            connection.call(stream)
        for _ in range(5):
            assert predict(server) == ("OK", [2.5])
        # All but those that may be received at a time were given up.
        wait_until(lambda: connection.receive(0.1) and len(connection.closed) >= CALLS - 4)


def test_a_message_over_the_limit_is_refused(server):
    code, _ = server.grpc("Predict", bytes(MEMORY // 8 + 1000))
    assert code == "RESOURCE_EXHAUSTED"
    code, text = server.grpc("Predict", bytes(MEMORY // 8 - 1000))
    assert code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"), text


def test_a_call_without_a_message_is_refused(server):
    with RawConnection(server.grpc_port) as connection:
        connection.call(1)
        connection.end(1)
        wait_until(lambda: connection.receive(0.1) and 1 in connection.closed)
    assert predict(server) == ("OK", [2.5])
