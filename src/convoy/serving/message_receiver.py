"""Reception of gRPC messages, with a limit on the number of messages in transfer.

gRPC delivers a message only after it has arrived completely. Until the server reads a message, gRPC
accepts only its first kilobytes. Limiting the number of reads therefore bounds the memory of
messages.

Most messages arrive within milliseconds. When too many are in transfer, the oldest message of the
connection with the most messages is rejected. Calls that send nothing therefore cannot block other
calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from convoy.serving.admission import RETRY_SECONDS, Admission
from convoy.serving.errors import (
    ServingError,
    deadline_exceeded,
    exhausted,
    invalid,
    server_stops,
)

Abort = Callable[[Any, ServingError], Awaitable[None]]


class _Receive:
    """A message that is being received.

    Attributes:
        context: the call's context.
        connection: the client's address.
        is_given_up: whether the call is being aborted.
        ended: event that is set when the message has arrived, or its memory is free.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        self.connection: str = context.peer()
        self.is_given_up = False
        self.ended = asyncio.Event()


class MessageReceiver:
    """Receives the messages of calls.

    Args:
        admission: the budgets of the server.
        seconds: maximum time for a message to arrive.
        abort: function that ends a call with an error, given its context.
    """

    def __init__(self, admission: Admission, seconds: float, abort: Abort) -> None:
        self._admission = admission
        self._seconds = seconds
        self._send_error = abort
        # In the order in which they began.
        self._receives: dict[_Receive, None] = {}
        self._aborts: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    async def receive(self, context: Any) -> bytes:
        """Return the message of a call.

        Raises:
            ServingError: if there is no memory for it, the client sends none, or the server stops.
            AbortError: if the call was rejected in the meantime; the client already has the status.
        """
        if self._is_stopping:
            raise server_stops()
        while len(self._receives) >= self._admission.max_receives:
            await self._ending().ended.wait()
        received = _Receive(context)
        late = deadline_exceeded(self._seconds)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._seconds, self._abort, received, late)
        self._receives[received] = None
        try:
            with self._admission.receiving():
                message = await context.read()
        finally:
            timer.cancel()
            del self._receives[received]
            received.ended.set()
        if message is grpc.aio.EOF:
            raise invalid("The call has no message; expected one.")
        data: bytes = message
        return data

    def announce_stop(self) -> None:
        """Reject further calls with a status that makes clients try another server.

        gRPC would cancel those that arrive while it stops.
        """
        self._is_stopping = True

    def give_all_up(self) -> None:
        """End the calls whose message has not arrived."""
        for received in list(self._receives):
            self._abort(received, server_stops())

    def _ending(self) -> _Receive:
        """Return a receive that is being rejected.

        If there is none, the oldest one of the connection with the most receives is rejected. Only
        one is rejected at a time: until its memory is free, a second one could be the only message
        of another client.
        """
        for received in self._receives:
            if received.is_given_up:
                return received
        counts = Counter(received.connection for received in self._receives)
        oldest = max(self._receives, key=lambda received: counts[received.connection])
        text = "Too many messages are being received. Try again later."
        self._abort(oldest, exhausted(text, RETRY_SECONDS))
        return oldest

    def _abort(self, received: _Receive, error: ServingError) -> None:
        """End a call; the read of its message then ends by itself.

        Cancelling the read instead could leave its message in memory.
        """
        received.is_given_up = True

        async def abort() -> None:
            if not received.ended.is_set():
                # gRPC raises an error to end the handler, which this is not; or the client is gone.
                with contextlib.suppress(Exception):
                    await self._send_error(received.context, error)

        task = asyncio.create_task(abort())
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)
