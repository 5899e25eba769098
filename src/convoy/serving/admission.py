"""Admission of requests by their cost: limits for one request, for one connection and in all.

A request is charged for the memory of each step before the step allocates it: for the bytes of its
body as they arrive, for its decoded inputs by their shapes or the length of the text, and for its
outputs by the model's signature. The budget is a share of the machine's memory, so requests are
rejected before the machine runs out of memory:

    body arrives --> reserve --> start --> decode --> reserve --> queue, compute --> release all

The size of a gRPC message is known only after it has arrived. While it is received, it is charged
for the maximum size, and only a few messages are received at a time (`message_receiver.py`).

A request that exceeds the limits of a single request gets status 413. A request that does not fit
at the moment gets status 429, with the number of seconds to wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from convoy.configuration import Configuration, Count
from convoy.context import bound
from convoy.serving.errors import Code, ServingError, exhausted, too_large
from convoy.serving.signature import Signature, TensorSpec

# Share of the machine's memory that all requests together may take.
MEMORY_SHARE = 1 / 4
# Shares of that budget for one connection, and for one request.
CONNECTION_SHARE = 1 / 2
REQUEST_SHARE = 1 / 8
# Share of that budget for gRPC messages that are being received.
RECEIVE_SHARE = 1 / 2
# Memory of HTTP responses that clients have not read, as a share of that budget. It is not part of
# the budget: the requests of these responses are released.
UNSENT_SHARE = 1 / 4
# Share of the queue for one connection with several requests.
QUEUE_SHARE = 3 / 4
# Memory per request that the default limit of their number assumes.
MEMORY_PER_REQUEST = 1 << 20
# Memory of a parsed JSON value or list, including its slot in the enclosing list.
JSON_VALUE_BYTES = 64
# Values and lists of a JSON request beyond those of its samples, such as names.
JSON_OTHER_VALUES = 10_000
# Bytes of an input value as text, including white space, and of the rest of a request.
INPUT_VALUE_BYTES = 64
INPUT_OTHER_BYTES = 1 << 20
# Memory of an output value: the number and its text.
TEXT_VALUE_BYTES = 64
RETRY_SECONDS = 1.0
_MARKS = (b",", b"[", b"{")
_CHUNK_BYTES = 1 << 18

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class AdmissionOptions(Configuration, all_flags=True):
    """Limits of requests, with the flags of `convoy serve` for them.

    batching and limits:
        max_request_bytes: maximum size of a request
        max_memory_bytes: maximum memory of all requests (default: a quarter of the machine's)
        max_requests: maximum requests at the same time (default: from --max-memory-bytes)
    """

    max_request_bytes: Count = 64 << 20
    max_memory_bytes: Count | None = None
    max_requests: Count | None = None


def machine_memory() -> int:
    """Return the memory of the machine, or of the container, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(file.read_text()))
    return total


class Admission:
    """The budgets of a server.

    Args:
        options: the limits.
        max_samples: maximum number of samples in the queue of a model, and in one request.

    Attributes:
        max_request_bytes: maximum size of a request.
        max_message_bytes: maximum size of a gRPC message.
        max_receives: maximum number of gRPC messages that are received at the same time.
        max_unsent_bytes: maximum memory of HTTP responses that clients have not read.
    """

    def __init__(self, options: AdmissionOptions, max_samples: int) -> None:
        self.max_request_bytes = options.max_request_bytes
        self.max_samples = max_samples
        memory = options.max_memory_bytes or int(MEMORY_SHARE * machine_memory())
        self._memory = memory
        requests = options.max_requests or min(4096, max(64, memory // MEMORY_PER_REQUEST))
        self._requests = requests
        # A larger message would be rejected only after it was received.
        self.max_message_bytes = min(options.max_request_bytes, int(REQUEST_SHARE * memory))
        self.max_receives = int(RECEIVE_SHARE * memory) // self.max_message_bytes
        self.max_unsent_bytes = int(UNSENT_SHARE * memory)
        self._receives = 0
        self._held = 0
        self._count = 0
        # Decoders reserve memory in other threads.
        self._lock = threading.Lock()
        self._bytes_by_connection: Counter[Hashable] = Counter()
        self._samples_by_connection: Counter[Hashable] = Counter()
        self._requests_by_connection: Counter[Hashable] = Counter()

    @property
    def held_bytes(self) -> int:
        """Memory that the current requests are charged for."""
        return self._held

    @property
    def requests(self) -> int:
        """Number of requests that are currently handled."""
        return self._count

    def max_body_bytes(self, signature: Signature) -> int:
        """Return the maximum size of a request over HTTP for a model.

        A request with more bytes has too many samples, and is rejected before it is received. The
        size of an image file does not depend on the model.
        """
        if any(spec.is_image for spec in signature.inputs):
            return self.max_request_bytes
        # An example has the name of each input.
        sample = sum(
            INPUT_VALUE_BYTES * (1 + spec.values) + len(spec.name) for spec in signature.inputs
        )
        return min(self.max_request_bytes, self.max_samples * sample + INPUT_OTHER_BYTES)

    @contextlib.contextmanager
    def request(self, connection: Hashable) -> Iterator[Reservation]:
        """Handle a request in the block; its reservations are released at the end."""
        reservation = Reservation(self, connection)
        try:
            with bound(_current, reservation):
                yield reservation
        finally:
            if reservation.is_started:
                self._count -= 1
                _subtract(self._requests_by_connection, connection, 1)
            reservation.end()

    def start(self, connection: Hashable) -> None:
        """Count a request that has arrived completely.

        Raises:
            ServingError: if too many requests are handled at the moment.
        """
        own = self._requests_by_connection
        if self._count >= self._requests or own[connection] >= CONNECTION_SHARE * self._requests:
            raise exhausted(
                f"{self._count} requests are being handled, {own[connection]} of them on this "
                f"connection; the limit is {self._requests}. Try again later.",
                RETRY_SECONDS,
            )
        self._count += 1
        own[connection] += 1

    @contextlib.contextmanager
    def receiving(self) -> Iterator[None]:
        """Charge a gRPC message for the maximum size while it is received in the block.

        Raises:
            ServingError: if there is no memory for it.
        """
        with self._lock:
            if self._taken + self.max_message_bytes > self._memory:
                raise self._out_of_memory(0)
            self._receives += 1
        try:
            yield
        finally:
            with self._lock:
                self._receives -= 1

    @property
    def _taken(self) -> int:
        return self._held + self._receives * self.max_message_bytes

    def _out_of_memory(self, own: int) -> ServingError:
        return exhausted(
            f"Requests take {self._taken} bytes of memory, {own} of them by this connection; the "
            f"limit is {self._memory}. Try again later.",
            RETRY_SECONDS,
        )

    def take(self, connection: Hashable, held: int, more: int) -> None:
        """Charge a request for more memory.

        Args:
            connection: the request's connection.
            held: number of bytes that the request is already charged for.
            more: the number of bytes.

        Raises:
            ServingError: if a limit would be exceeded.
        """
        if held + more > REQUEST_SHARE * self._memory:
            raise too_large(
                f"The request needs {held + more} bytes of memory; one request may take at most "
                f"{int(REQUEST_SHARE * self._memory)}. Send fewer samples."
            )
        own = self._bytes_by_connection
        with self._lock:
            is_connection_full = own[connection] + more > CONNECTION_SHARE * self._memory
            if self._taken + more > self._memory or is_connection_full:
                raise self._out_of_memory(own[connection])
            self._held += more
            own[connection] += more

    def give_back(self, connection: Hashable, size: int) -> None:
        """Release memory that a request was charged for."""
        with self._lock:
            self._held -= size
            _subtract(self._bytes_by_connection, connection, size)

    def take_samples(self, connection: Hashable, samples: int) -> None:
        """Charge a request for its samples.

        Raises:
            ServingError: if the connection's other requests use up its share of the queue.
        """
        own = self._samples_by_connection
        if own[connection] and own[connection] + samples > QUEUE_SHARE * self.max_samples:
            raise exhausted(
                f"{own[connection]} samples of this connection are being handled, and the limit is "
                f"{int(QUEUE_SHARE * self.max_samples)}. Try again later.",
                RETRY_SECONDS,
            )
        own[connection] += samples

    def give_back_samples(self, connection: Hashable, samples: int) -> None:
        """Release samples that a request was charged for."""
        _subtract(self._samples_by_connection, connection, samples)


class Reservation:
    """The memory and samples that one request is charged for.

    Attributes:
        held: its memory in bytes.
        samples: its samples.
        is_started: whether it has arrived completely, and counts towards the limit of requests.
    """

    def __init__(self, admission: Admission, connection: Hashable) -> None:
        self._admission = admission
        self._connection = connection
        self.held = 0
        self.samples = 0
        self.is_started = False
        self._outputs = 0
        self._is_ended = False
        # Memory of the response that stays charged after the end, and whether the call is over.
        self._kept = 0
        self._is_closed = False
        # The request can end while a thread decodes it.
        self._lock = threading.Lock()

    def start(self) -> None:
        """Count the request, which has arrived completely.

        Incomplete requests do not count, because a client could start any number of them.

        Raises:
            ServingError: if too many requests are handled at the moment.
        """
        self._admission.start(self._connection)
        self.is_started = True

    def reserve(self, size: int) -> None:
        """Charge the request for memory that it is about to take.

        Raises:
            ServingError: if a limit would be exceeded, or the request has ended.
        """
        with self._lock:
            # What is charged after the end would never be released.
            if self._is_ended:
                raise ServingError(
                    Code.CANCELLED, "The request ended before it was decoded. Send it again."
                )
            self._admission.take(self._connection, self.held, size)
            self.held += size

    def reserve_outputs(self, signature: Signature, samples: int) -> None:
        """Charge the request for its samples and their outputs.

        Raises:
            ServingError: if a limit would be exceeded.
        """
        values = sum(spec.values for spec in signature.outputs)
        size = samples * values * TEXT_VALUE_BYTES
        self.reserve(size)
        self._outputs += size
        self._admission.take_samples(self._connection, samples)
        self.samples += samples

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Release what is reserved in the block if it raises an error.

        Decoding that is too expensive for one thread starts again in another, and would otherwise
        be charged twice.
        """
        held = self.held
        try:
            yield
        except BaseException:
            self._release_to(held)
            raise

    @contextlib.contextmanager
    def task(self) -> Iterator[None]:
        """Handle one task of the request in the block; at its end, its outputs stay charged.

        The tasks run one after the other, so only the outputs, which are part of the response, add
        up.
        """
        held, samples, outputs = self.held, self.samples, self._outputs
        try:
            yield
        finally:
            self._release_to(held + self._outputs - outputs)
            self._admission.give_back_samples(self._connection, self.samples - samples)
            self.samples = samples

    def keep_outputs(self) -> None:
        """Stay charged for the response after the end, until `close`: the client has to read it."""
        with self._lock:
            if not self._is_closed:
                self._kept = self._outputs

    def close(self) -> None:
        """Release what was kept: the response was read, or the connection has ended."""
        with self._lock:
            self._is_closed = True
            self._kept = 0
        if self._is_ended:
            self._release_to(0)

    def end(self) -> None:
        """Release everything but what is kept; nothing can be reserved afterwards."""
        with self._lock:
            self._is_ended = True
        self._release_to(self._kept)
        self._admission.give_back_samples(self._connection, self.samples)
        self.samples = 0

    def _release_to(self, held: int) -> None:
        """Release the memory beyond an amount."""
        with self._lock:
            size = max(0, self.held - held)
            self._admission.give_back(self._connection, size)
            self.held -= size


_current: ContextVar[Reservation | None] = ContextVar("reservation", default=None)


def current() -> Reservation | None:
    """Return the reservation of the request that is handled, if it was admitted."""
    return _current.get()


def attempt() -> contextlib.AbstractContextManager[None]:
    """Return `Reservation.attempt` of the request that is handled, if it was admitted."""
    reservation = current()
    return reservation.attempt() if reservation else contextlib.nullcontext()


def task() -> contextlib.AbstractContextManager[None]:
    """Return `Reservation.task` of the request that is handled, if it was admitted."""
    reservation = current()
    return reservation.task() if reservation else contextlib.nullcontext()


def charged_bytes() -> int:
    """Return the memory that the request that is handled is charged for: at first, its message."""
    reservation = current()
    return reservation.held if reservation else 0


def reserve(size: int) -> None:
    """Charge the request that is handled, if it was admitted, for memory that it is about to take.

    Raises:
        ServingError: if a limit would be exceeded.
    """
    if reservation := current():
        reservation.reserve(size)


def _subtract(counter: Counter[Hashable], key: Hashable, amount: int) -> None:
    counter[key] -= amount
    if counter[key] <= 0:
        del counter[key]


def check_shape(spec: TensorSpec, shape: tuple[int, ...], max_samples: int) -> None:
    """Check the shape that a request gives for an input, before any value is allocated.

    Raises:
        ServingError: if it is not the shape of a batch of this input, or has too many samples.
    """
    spec.check_batch(shape)
    check_samples(shape[0], max_samples)


def check_samples(samples: int, max_samples: int) -> None:
    """Check the number of samples of a request.

    Raises:
        ServingError: if they would never fit into the queue.
    """
    if samples > max_samples:
        raise too_large(
            f"The request has {samples} samples; at most {max_samples} are accepted in one. Send "
            "several requests, or start the server with a larger --max-enqueued-samples."
        )


def check_json(body: bytes, signature: Signature, max_samples: int) -> int:
    """Check the number of values in a JSON text by its commas and brackets, without parsing it.

    Returns:
        The maximum memory of the parsed text in bytes.

    Raises:
        ServingError: if the text has more values than the largest request for the model.
    """
    # Each value except the last is followed by a comma; an empty list or object has no comma.
    values = 1 + _count_marks(body)
    limit = max_samples * sum(map(_json_values, signature.inputs)) + JSON_OTHER_VALUES
    if values > limit:
        raise too_large(
            f"The request has {values} values and lists; {max_samples} samples of the model have "
            f"at most {limit}. Send fewer samples, or start the server with a larger "
            "--max-enqueued-samples."
        )
    return values * JSON_VALUE_BYTES


def _count_marks(text: bytes) -> int:
    """Return the number of commas and opening brackets in a text."""
    if len(text) < _CHUNK_BYTES:
        return sum(map(text.count, _MARKS))
    # NumPy releases the GIL.
    total, array = 0, np.frombuffer(text, np.uint8)
    for start in range(0, len(array), _CHUNK_BYTES):
        chunk = array[start : start + _CHUNK_BYTES]
        total += sum(int(np.count_nonzero(chunk == ord(mark))) for mark in _MARKS)
    return total


def _json_values(spec: TensorSpec) -> int:
    """Return the number of values, lists and keys of a sample's input in JSON."""
    lists, count = 1, 1
    for size in spec.shape:
        lists, count = lists + count, count * size
    # A key and an object around the input, a list around a feature, and `signature_name`.
    return lists + count + 4
