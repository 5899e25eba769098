"""The HTTP connections of a server: their number, their idle time, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import re
import resource
import select
import socket
import struct
import sys

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler
from convoy.serving.credentials import Certificate
from convoy.serving.http_service import error_response
from convoy.serving.request_body import UNSUPPORTED_ENCODING
from convoy.serving.response_sender import ResponseSender

# The beginning of a quotation in a message of aiohttp.
_QUOTED = re.compile(r":? b?['\"]|\n")
SO_ATTACH_FILTER = 26
# Instructions of a packet filter: operation, jump if true, jump if false, operand. They drop the
# first segment of a connection, which has the flag SYN in byte 13 of its header.
_FILTER = (
    (0x30, 0, 0, 13),  # load the byte
    (0x45, 0, 1, 0x02),  # is the flag set?
    (0x06, 0, 0, 0),  # then drop the segment
    (0x06, 0, 0, 0xFFFF),  # otherwise accept it
)


def refuse_new_connections(listener: socket.socket) -> None:
    """Make the kernel ignore further attempts to connect, if the system supports it."""
    if not sys.platform.startswith("linux"):
        return
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _FILTER)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(_FILTER), ctypes.addressof(buffer))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


# Clients may send a request on a connection that the server is about to close. When the server
# stops, a connection therefore stays open for this time after its last use.
LINGER_SECONDS = 1.0
# Time to detect a request that arrived together with the client's half-close.
HALF_CLOSED_SECONDS = 0.5
# Time to complete connections that clients started before the listener closes.
LAST_ACCEPT_SECONDS = 0.05
# Descriptors reserved for files, gRPC and pipes to other processes.
OTHER_DESCRIPTORS = 128
MAX_DESCRIPTORS = 1 << 16
BACKLOG = 1024
HANDSHAKE_SECONDS = 10.0


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to the allowed maximum, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def default_max_connections() -> int:
    """Return the number of HTTP connections that the limit of open files allows."""
    return max(16, (raise_descriptor_limit() - OTHER_DESCRIPTORS) // 2)


class _Refused(asyncio.Protocol):
    """A connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _RequestHandler(RequestHandler):
    """aiohttp's handler of a connection, with errors of the protocol in JSON."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        # It raises an error if a part of another response was sent.
        super().handle_error(request, status, exc, message)
        if isinstance(exc, ContentEncodingError):
            status, text = 415, UNSUPPORTED_ENCODING
        elif status == 500:
            text = "The server failed to handle the request."
        else:
            # aiohttp's messages end with the client's line, which can be long or hold a token.
            reason = _QUOTED.split(message or "", maxsplit=1)[0].rstrip(":. ")
            text = f"Malformed request: {reason}."
        response = error_response(status, text)
        response.force_close()
        return response


class _Connection(asyncio.Protocol):
    """A connection whose end is recorded.

    It stays open for the response after the client has half-closed it.

    Args:
        handler: aiohttp's handler of the connection.
        connections: the other connections.
    """

    def __init__(self, handler: RequestHandler, connections: HttpConnections) -> None:
        self._handler = handler
        self._connections = connections
        self._is_encrypted = False
        self.data_received = handler.data_received  # type: ignore[method-assign]
        self.pause_writing = handler.pause_writing  # type: ignore[method-assign]
        self.resume_writing = handler.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self._handler)
        self._handler.connection_lost(exc)

    def eof_received(self) -> bool:
        self._connections.half_closed(self._handler)
        # TLS does not support half-closed connections.
        return not self._is_encrypted


class HttpConnections:
    """Listens for HTTP connections, and closes them when they are idle or the server stops.

    Args:
        application: the handlers of requests.
        idle_seconds: time after which a connection without a complete request is closed.
        max_connections: maximum number of connections.
        max_unsent_bytes: maximum memory of responses that clients have not read.
    """

    def __init__(
        self,
        application: web.Application,
        idle_seconds: float,
        max_connections: int,
        max_unsent_bytes: int,
    ) -> None:
        application.middlewares.insert(0, self._track)
        self._runner = web.AppRunner(
            application,
            # The time for open requests has already passed.
            shutdown_timeout=0.1,
            handle_signals=False,
        )
        self._idle_seconds = idle_seconds
        self._sender = ResponseSender(idle_seconds, max_unsent_bytes)
        self._logger = _quiet_logger()
        self._max_connections = max_connections
        self._active: dict[RequestHandler, list[web.Request]] = {}
        self._closing: set[RequestHandler] = set()
        # Time of the last use of each connection, and those that have sent a request.
        self._used: dict[RequestHandler, float] = {}
        self._known: set[RequestHandler] = set()
        self._listener: asyncio.Server | None = None
        self._sockets: list[socket.socket] = []
        self._is_stopping = False

    async def start(self, host: str, port: int, certificate: Certificate | None) -> int:
        """Listen for connections, and return the port.

        Raises:
            OSError: if the port cannot be used.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._accept,
            host,
            port,
            backlog=BACKLOG,
            ssl=None if certificate is None else certificate.context,
            ssl_handshake_timeout=None if certificate is None else HANDSHAKE_SECONDS,
        )
        self._sockets = _raw_sockets(self._listener)
        number: int = self._sockets[0].getsockname()[1]
        return number

    @property
    def addresses(self) -> list[str]:
        """The addresses that are listened on."""
        return [found.getsockname()[0] for found in self._sockets]

    def _accept(self) -> asyncio.Protocol:
        """Return the handler of a new connection."""
        server = self._runner.server
        if server is None:
            return _Refused()
        if len(self._used) >= self._max_connections:
            self._forget_failed(server)
        if len(self._used) >= self._max_connections and not self._close_an_idle_one():
            return _Refused()
        loop = asyncio.get_running_loop()
        handler = _RequestHandler(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=self._idle_seconds,
            logger=self._logger,
        )
        self._used[handler] = loop.time()
        return _Connection(handler, self)

    def _forget_failed(self, server: web.Server) -> None:
        """Forget connections that ended during the TLS handshake, before aiohttp was notified."""
        seen = set(server.connections)
        latest = asyncio.get_running_loop().time() - HANDSHAKE_SECONDS
        for connection, used in list(self._used.items()):
            if connection not in seen and used < latest:
                self.forget(connection)

    def forget(self, connection: RequestHandler) -> None:
        """Forget a connection that has ended."""
        self._used.pop(connection, None)
        self._known.discard(connection)
        self._closing.discard(connection)

    def half_closed(self, connection: RequestHandler) -> None:
        """Answer the requests that the client has sent, then close the connection."""
        self._closing.add(connection)
        for request in self._active.get(connection, ()):
            _end_body(request)
        # The request may have arrived just now.
        asyncio.get_running_loop().call_later(HALF_CLOSED_SECONDS, self._close_if_idle, connection)

    def _close_if_idle(self, connection: RequestHandler) -> None:
        if connection not in self._active:
            connection.force_close()

    def _close_an_idle_one(self) -> bool:
        """Close the connection that has been idle longest, if there is one.

        Connections without any request come first. Connections with an incomplete request come
        last; they are included so that slow clients cannot block new connections.
        """
        idle = [connection for connection in self._used if not self._is_answered(connection)]
        if not idle:
            return False
        oldest = min(
            idle, key=lambda found: (found in self._active, found in self._known, self._used[found])
        )
        self.forget(oldest)
        oldest.force_close()
        return True

    def _is_answered(self, connection: RequestHandler) -> bool:
        """Return whether a complete request of a connection is being handled."""
        return any(request.content.is_eof() for request in self._active.get(connection, ()))

    @web.middleware
    async def _track(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Track which connections are in use, and tell clients to close them at a stop."""
        connection = request.protocol
        requests = self._active.setdefault(connection, [])
        requests.append(request)
        if connection in self._used:
            self._known.add(connection)
        if connection in self._closing:
            _end_body(request)
        try:
            response = await handler(request)
            if self._is_stopping or connection in self._closing:
                response.force_close()
            await self._sender.send(request, response)
            return response
        finally:
            requests.remove(request)
            if not requests:
                del self._active[connection]
            if connection in self._used:
                self._used[connection] = asyncio.get_running_loop().time()

    def announce_stop(self) -> None:
        """Close each connection after its next response from now on."""
        self._is_stopping = True

    async def stop(self, end: float) -> None:
        """Stop listening, answer all requests on open connections, and close these.

        Args:
            end: time of the event loop at which the remaining connections are closed.
        """
        self.announce_stop()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._close_listener()
        while self._open_connections(began) and loop.time() < end:
            await asyncio.sleep(0.01)
        await self._runner.cleanup()

    async def _close_listener(self) -> None:
        if self._listener is None:
            return
        # The kernel has completed connections that are not accepted yet; a close would reset them.
        for found in self._sockets:
            refuse_new_connections(found)
        loop = asyncio.get_running_loop()
        end = loop.time() + LAST_ACCEPT_SECONDS
        while loop.time() < end or select.select(self._sockets, [], [], 0)[0]:
            await asyncio.sleep(0.005)
        self._listener.close()
        self._listener = None
        for found in self._sockets:
            found.close()
        self._sockets = []

    def _open_connections(self, began: float) -> bool:
        """Return whether a request is handled, or may still arrive on an open connection."""
        server = self._runner.server
        if self._active:
            return True
        now = asyncio.get_running_loop().time()
        return server is not None and any(
            now < max(began, self._used.get(connection, began)) + LINGER_SECONDS
            for connection in server.connections
        )


def _end_body(request: web.Request) -> None:
    """End the body of a request whose client sends nothing more."""
    if not request.content.is_eof():
        request.content.set_exception(web.RequestPayloadError("The body is incomplete."))


def _raw_sockets(server: asyncio.Server) -> list[socket.socket]:
    """Return the sockets of a server; asyncio shows them in a wrapper without `listen`."""
    return [socket.socket(fileno=os.dup(found.fileno())) for found in server.sockets]


def _quiet_logger() -> logging.Logger:
    """Return a logger for aiohttp that drops its messages, because clients can cause any number."""
    logger = logging.getLogger("convoy.serving.http")
    logger.setLevel(logging.CRITICAL + 1)
    return logger
