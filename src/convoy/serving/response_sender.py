"""Sending of HTTP responses, with limits for clients that do not read them.

A response whose client does not read it stays in memory, after its request was released from
admission. Such responses are bounded in bytes and in time:

    response --> unsent bytes --> written, as the client reads
                     |
                     +-- no byte for `idle_seconds`, or the oldest when there are too many:
                         the connection is closed
"""

import asyncio
import contextlib

from aiohttp import web

# Memory of a response relative to its body: the body, and its copy in the transport.
COPIES = 2


class ResponseSender:
    """Sends responses.

    Args:
        idle_seconds: time after which a connection is closed whose client reads nothing.
        max_unsent_bytes: maximum memory of responses that clients have not read.
    """

    def __init__(self, idle_seconds: float, max_unsent_bytes: int) -> None:
        self._idle_seconds = idle_seconds
        self._max_unsent_bytes = max_unsent_bytes
        # By connection, in the order in which the responses began.
        self._unsent: dict[asyncio.Transport, int] = {}

    @property
    def unsent_bytes(self) -> int:
        """Memory of the responses that are being sent."""
        return sum(self._unsent.values())

    async def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Send a response; close the connection if the client does not read it."""
        transport = request.transport
        if transport is None:
            return
        body = response.body if isinstance(response, web.Response) else None
        size = COPIES * len(body) if isinstance(body, bytes | bytearray) else 0
        self._make_room(size)
        self._unsent[transport] = size
        try:
            # The connection may be gone, which aiohttp notices by itself.
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
                await self._write(transport, response)
        finally:
            self._unsent.pop(transport, None)

    def _make_room(self, size: int) -> None:
        """Close the connections with the oldest responses until another one has room.

        Responses of clients that read are sent within milliseconds, so the oldest are others.
        """
        excess = self.unsent_bytes + size - self._max_unsent_bytes
        for transport, unsent in list(self._unsent.items()):
            if excess <= 0:
                return
            transport.abort()  # which empties its buffer at once
            del self._unsent[transport]
            excess -= unsent

    async def _write(self, transport: asyncio.Transport, response: web.StreamResponse) -> None:
        writing = asyncio.ensure_future(response.write_eof())
        unread = -1
        try:
            while True:
                done, _ = await asyncio.wait({writing}, timeout=self._idle_seconds)
                if done:
                    return writing.result()
                before, unread = unread, transport.get_write_buffer_size()
                if unread == before:
                    transport.abort()
        finally:
            writing.cancel()
