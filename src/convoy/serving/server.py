"""A server process: its ports, its life cycle, and the polling for new versions."""

import asyncio
import contextlib
import faulthandler
import logging
import signal
from collections.abc import Callable

import grpc
from convoy.error_messages import system_reason
from convoy.serving.connections import (
    LINGER_SECONDS,
    HttpConnections,
    default_max_connections,
)
from convoy.serving.credentials import Certificate, Token
from convoy.serving.flags import ServerOptions
from convoy.serving.http_service import HttpService
from convoy.serving.loading import Loader
from convoy.serving.message_receiver import MessageReceiver
from convoy.serving.service import Service
from convoy.serving.tensorflow_grpc import GrpcService
from convoy.serving.versions import ModelConfig

logger = logging.getLogger("convoy.serving")

# Time between checks of the token and certificate files.
REFRESH_SECONDS = 1.0
# Time for gRPC clients to be notified that the server stops.
LAST_CALL_SECONDS = 0.2
# Requests that one gRPC connection may have open.
GRPC_STREAMS = 256
# Age of a gRPC connection, in units of --idle-seconds, at which its client must connect again.
# Responses that a client does not read stay in memory until its connection ends. Not less: a call
# that begins while its connection ends can fail with UNAVAILABLE, and has to be repeated.
GRPC_AGE = 60


class Server:
    """Serves models until it is stopped.

    Args:
        models: the models.
        options: the options.

    Attributes:
        port: the port of REST, after the start.
        grpc_port: the port of gRPC, after the start.
    """

    def __init__(self, models: list[ModelConfig], options: ServerOptions) -> None:
        self.options = options
        loader = Loader(options.load_seconds, try_first=options.try_versions)
        self.service = Service(
            models, options.batching, options.request_seconds, options.admission, loader
        )
        self.port = self.grpc_port = 0
        self._token = Token(options.token, options.token_file)
        self._certificate: Certificate | None = None
        if options.tls_certificate is not None and options.tls_key is not None:
            files = options.tls_certificate, options.tls_key, options.tls_client_ca
            self._certificate = Certificate(*files)
        self._max_connections = options.max_connections or default_max_connections()
        self._tasks: list[asyncio.Task[None]] = []
        self._http: HttpConnections | None = None
        self._grpc: grpc.aio.Server | None = None
        self._receiver: MessageReceiver | None = None

    @property
    def addresses(self) -> list[str]:
        """The address of each protocol, after the start."""
        options = self.options
        scheme = "http" if options.tls_certificate is None else "https"
        rest = f"REST and the page: {scheme}://{options.host}:{self.port}/"
        remote = f"gRPC: {options.host}:{self.grpc_port}"
        return [rest] * (options.port >= 0) + [remote] * (options.grpc_port >= 0)

    async def start(self) -> None:
        """Open the ports, load the models, and start polling for new versions.

        Raises:
            OSError: if a port cannot be opened, or a certificate cannot be read.
        """
        try:
            await self._check_host()
            if self.options.port >= 0:
                await self._start_http()
            if self.options.grpc_port >= 0:
                await self._start_grpc()
        except OSError:
            await self._close(asyncio.get_running_loop().time())
            raise
        addresses = "; ".join(self.addresses)
        logger.info("listening, and loading %s: %s", ", ".join(self.service.models), addresses)
        if self.options.poll_seconds > 0:
            self._repeat(self.options.poll_seconds, self.service.search)
        self._repeat(REFRESH_SECONDS, self._token.refresh)
        if self._certificate is not None:
            self._repeat(REFRESH_SECONDS, self._certificate.refresh)
        await self.service.poll()

    async def stop(self) -> None:
        """Answer accepted requests, reject new ones, and unload the models.

        First, the readiness check fails, so that load balancers stop sending requests. For
        `drain_seconds`, the server answers all requests, and tells clients to close their
        connections. Then it stops listening, and answers open requests. The stop takes at most
        `stop_seconds`.
        """
        end = asyncio.get_running_loop().time() + self.options.stop_seconds
        self.service.is_stopping = True
        if self._http is not None:
            self._http.announce_stop()
        await asyncio.sleep(min(self.options.drain_seconds, self.options.stop_seconds))
        await self._close(end)

    async def _close(self, end: float) -> None:
        """Stop listening, answer open requests and unload the models, until a time of the loop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        remaining = end - asyncio.get_running_loop().time()
        stops = []
        if self._grpc is not None and self._receiver is not None:
            # Messages in transfer are answered; calls without a message do not delay a stop.
            self._receiver.announce_stop()
            loop = asyncio.get_running_loop()
            loop.call_later(LINGER_SECONDS, self._receiver.give_all_up)
            stops.append(self._stop_grpc(self._grpc, max(0.0, remaining)))
        if self._http is not None:
            stops.append(self._http.stop(end))
        await asyncio.gather(*stops)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(end, asyncio.get_running_loop().time() + 0.1)):
                await self.service.close()

    async def _stop_grpc(self, server: grpc.aio.Server, seconds: float) -> None:
        # Clients that send calls continuously are notified of the stop first.
        await asyncio.sleep(min(LAST_CALL_SECONDS, seconds))
        await server.stop(seconds)

    def _repeat(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function repeatedly until the stop."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                function()

        self._tasks.append(asyncio.create_task(repeat()))

    async def _check_host(self) -> None:
        try:
            await asyncio.get_running_loop().getaddrinfo(self.options.host, None)
        except (OSError, UnicodeError) as error:
            raise OSError(
                f"--host {self.options.host} cannot be resolved: {system_reason(error)}. Pass an "
                "address."
            ) from None

    async def _start_http(self) -> None:
        options = self.options
        http = HttpService(self.service, self._token, options.cors_origin)
        self._http = HttpConnections(
            http.application(),
            options.idle_seconds,
            self._max_connections,
            self.service.admission.max_unsent_bytes,
        )
        try:
            self.port = await self._http.start(options.host, options.port, self._certificate)
        except OSError as error:
            raise OSError(
                f"{options.host}:{options.port} cannot be used: {system_reason(error)}. Pass "
                "another --port."
            ) from None

    async def _start_grpc(self) -> None:
        options = self.options
        milliseconds = int(1000 * options.idle_seconds)
        request_milliseconds = int(1000 * options.request_seconds)
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self.service.admission.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", GRPC_STREAMS),
                ("grpc.max_allowed_incoming_connections", self._max_connections),
                # Otherwise, flow-control windows grow with the speed of a connection, for every
                # call on it.
                ("grpc.http2.bdp_probe", 0),
                # Time of a new connection to begin with the protocol.
                ("grpc.server_handshake_timeout_ms", milliseconds),
                ("grpc.max_connection_idle_ms", milliseconds),
                ("grpc.max_connection_age_ms", GRPC_AGE * milliseconds),
                # Time of its open calls to end: to be answered, and to be read.
                ("grpc.max_connection_age_grace_ms", milliseconds + request_milliseconds),
            ]
        )
        service = GrpcService(self.service, self._token, options.allow_reload)
        self._receiver = service.receiver
        self._grpc.add_generic_rpc_handlers(service.handlers())
        address = f"{options.host}:{options.grpc_port}"
        try:
            if self._certificate is None:
                self.grpc_port = self._grpc.add_insecure_port(address)
            else:
                credentials = self._certificate.grpc_credentials()
                self.grpc_port = self._grpc.add_secure_port(address, credentials)
        except RuntimeError as error:
            reason = str(error).partition(";")[0]
            raise OSError(
                f"{address} cannot be used: {reason}. Pass another --grpc-port."
            ) from None
        await self._grpc.start()


async def serve_until_stopped(server: Server, started: Callable[[], None]) -> None:
    """Run a server until SIGTERM or SIGINT, then stop it gracefully.

    The process ends within the time limit of a stop, even if a model or a file system blocks.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if not stopped.is_set():
            # This thread belongs to Python's runtime and needs no lock that a blocked thread may
            # hold.
            faulthandler.dump_traceback_later(server.options.stop_seconds + 1, exit=True)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    starting = asyncio.create_task(server.start())
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        started()
        await waiting
    else:
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
    waiting.cancel()
    await server.stop()
