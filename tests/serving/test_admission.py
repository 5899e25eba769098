import json
import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from convoy.serving import admission
from convoy.serving.admission import Admission, AdmissionOptions
from convoy.serving.errors import Code, ServingError
from convoy.serving.signature import Signature, TensorSpec

MEMORY = 8_000


def make(samples=100, **options):
    return Admission(AdmissionOptions(**{"max_memory_bytes": MEMORY, **options}), samples)


def test_what_a_request_reserves_is_released_at_its_end():
    made = make()
    with made.request("a") as reservation:
        reservation.reserve(900)
        assert (made.held_bytes, made.requests) == (900, 0)
        reservation.start()
        assert (made.held_bytes, made.requests) == (900, 1)
        assert admission.current() is reservation
    assert (made.held_bytes, made.requests) == (0, 0)
    assert admission.current() is None


def test_a_request_that_could_never_fit_is_too_large():
    with make().request("a") as reservation:
        reservation.reserve(900)
        with pytest.raises(
            ServingError, match="needs 1100 bytes of memory; one request may take at most 1000"
        ) as error:
            reservation.reserve(200)
    assert (error.value.code, error.value.http_status) == (Code.INVALID_ARGUMENT, 413)


@contextmanager
def requests(made, *connections, size=0):
    """Have a request on each of some connections."""
    with ExitStack() as stack:
        for connection in connections:
            reservation = stack.enter_context(made.request(connection))
            reservation.start()
            reservation.reserve(size)
        yield


def test_one_connection_cannot_take_the_memory_of_others():
    made = make()
    with requests(made, *["greedy"] * 4, size=1000):
        with (
            made.request("greedy") as more,
            pytest.raises(ServingError, match="Try again") as error,
        ):
            more.reserve(1)
        assert error.value.http_status == 429
        assert error.value.retry_seconds > 0
        with made.request("modest") as other:
            other.reserve(1000)
    assert made.held_bytes == 0


def test_the_memory_of_all_requests_is_limited():
    made = make()
    with (
        requests(made, *range(8), size=1000),
        made.request("last") as more,
        pytest.raises(ServingError, match="the limit is 8000"),
    ):
        more.reserve(1)


def test_the_number_of_requests_is_limited_in_all_and_per_connection():
    made = make(max_requests=4)
    with requests(made, "a", "a"):
        with pytest.raises(ServingError, match="2 of them on this"), requests(made, "a"):
            pass
        with (
            requests(made, "b", "b"),
            pytest.raises(ServingError, match="4 requests are being handled"),
            requests(made, "c"),
        ):
            pass


def test_a_connection_with_several_requests_leaves_a_part_of_the_queue_to_others():
    signature = Signature((), (TensorSpec("y", "float32", ()),))
    made = make(samples=8)
    with made.request("a") as all_at_once:
        all_at_once.reserve_outputs(signature, 8)
    with made.request("a") as first, made.request("a") as second:
        first.reserve_outputs(signature, 4)
        with pytest.raises(ServingError, match="4 samples of this connection"):
            second.reserve_outputs(signature, 4)


def test_what_fails_is_not_charged():
    def decode(made):
        with admission.attempt():
            admission.reserve(200)
            assert made.held_bytes == 300
            admission.reserve(800)

    made = make()
    with made.request("a") as reservation:
        reservation.reserve(100)
        with pytest.raises(ServingError, match="needs 1100 bytes"):
            decode(made)
        assert made.held_bytes == 100
        with admission.attempt():
            admission.reserve(400)
        assert made.held_bytes == 500
    assert made.held_bytes == 0


def test_tasks_of_one_request_are_charged_one_after_the_other_except_for_their_outputs():
    signature = Signature((), (TensorSpec("y", "float32", ()),))
    made = make(samples=8)
    with made.request("a") as reservation:
        reservation.reserve(10)
        for number in range(1, 4):
            with admission.task():
                reservation.reserve(200)
                reservation.reserve_outputs(signature, 4)
                assert reservation.samples == 4
            assert made.held_bytes == 10 + number * 4 * admission.TEXT_VALUE_BYTES
        assert reservation.samples == 0
        with made.request("a") as other:
            other.reserve_outputs(signature, 8)
    assert made.held_bytes == 0


def test_a_request_that_has_ended_takes_nothing_more():
    made = make()
    with made.request("a") as reservation:
        reservation.reserve(100)
    with pytest.raises(ServingError, match="ended before it was decoded") as error:
        reservation.reserve(100)
    assert error.value.code == Code.CANCELLED
    assert made.held_bytes == 0


def test_without_a_request_nothing_is_charged():
    with admission.attempt(), admission.task():
        admission.reserve(1 << 60)


def test_threads_share_the_budget():
    made = make(max_memory_bytes=1 << 40)
    with made.request("a") as reservation:
        work = [lambda: [reservation._admission.take("a", 0, 1) for _ in range(10_000)]] * 4
        threads = [threading.Thread(target=function) for function in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made.held_bytes == 40_000
        reservation.held = 40_000


SIGNATURE = Signature((TensorSpec("x", "float32", (2, 3)),), ())


@pytest.mark.parametrize("padding", [0, 1 << 19])
def test_the_values_of_a_text_are_counted_without_parsing(padding):
    body = b"[[1,2,3],[4,5,6]]" + b" " * padding
    assert admission.check_json(body, SIGNATURE, 10) == (1 + 5 + 3) * admission.JSON_VALUE_BYTES
    many = b"[]," * 20_000 + b" " * padding
    with pytest.raises(ServingError, match="40001 values and lists; 10 samples") as error:
        admission.check_json(many, SIGNATURE, 10)
    assert error.value.http_status == 413


def test_the_largest_request_of_a_model_is_not_refused():
    rows = np.ones((50_000, 2, 3), int).tolist()
    body = str({"instances": [{"x": row} for row in rows]}).encode()
    admission.check_json(body, SIGNATURE, 50_000)


def test_the_limit_is_that_of_the_container(tmp_path, monkeypatch):
    whole = admission.machine_memory()
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(admission, "CGROUP_LIMITS", (limit,))
    for text, expected in (("max", whole), (str(1 << 20), 1 << 20), (str(1 << 62), whole)):
        limit.write_text(f"{text}\n")
        assert admission.machine_memory() <= expected
    limit.write_text(str(1 << 20))
    assert admission.machine_memory() == 1 << 20


def test_messages_that_are_received_are_charged_for_the_largest_size():
    made = make()
    assert (made.max_message_bytes, made.max_receives) == (1000, 4)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(made.receiving())
        with requests(made, *range(4), size=1000):
            with made.request("last") as last, pytest.raises(ServingError, match="take 8000 bytes"):
                last.reserve(1)
            with pytest.raises(ServingError, match="Try again"), made.receiving():
                pass
    with requests(made, *range(8), size=1000):
        pass


def test_a_body_that_no_batch_of_the_model_has_is_too_large():
    made = make(samples=100, max_request_bytes=64 << 20)
    rows = [{"instances": [{"x": np.full((2, 3), -1.2345678901234567e-300).tolist()}] * 100}]
    assert len(json.dumps(rows, indent=8)) < made.max_body_bytes(SIGNATURE) < 2 << 20
    images = Signature((TensorSpec("x", "uint8", (8, 8, 3)),), ())
    assert made.max_body_bytes(images) == 64 << 20
    assert make(max_request_bytes=1000).max_body_bytes(SIGNATURE) == 1000
