"""A server process: its ports, its life cycle, and the polling for new versions."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import grpc
from convoy.configuration import Configuration, Count, Option
from convoy.serving.admission import GROUP, AdmissionOptions
from convoy.serving.batching import BatchOptions
from convoy.serving.client import TOKEN_VARIABLE
from convoy.serving.connections import HttpConnections, default_max_connections
from convoy.serving.credentials import Certificate, Token, check_token
from convoy.serving.http_service import HttpService
from convoy.serving.loading import Loader
from convoy.serving.service import Service
from convoy.serving.tensorflow_grpc import GrpcService
from convoy.serving.versions import ModelConfig
from pydantic import Field

logger = logging.getLogger("convoy.serving")

# Time between looks at the files of the token and the certificate.
REFRESH_SECONDS = 1.0
# Requests that one gRPC connection may have open.
GRPC_STREAMS = 256

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=-1, le=65535)]


@dataclass(frozen=True)
class ServerOptions(Configuration):
    """Options of a server, with the flags of `convoy serve` for them."""

    poll_seconds: Annotated[
        float, Option("time between searches for new versions; 0: search once", "models")
    ] = 1.0
    load_seconds: Annotated[Positive, Option("maximum time to load a version", "models")] = 600.0
    try_versions: Annotated[
        bool, Option("whether a separate process loads each version first", "models")
    ] = True
    allow_reload: Annotated[
        bool, Option("whether gRPC clients may change the list of models", "models")
    ] = False
    host: Annotated[str, Option("address to listen on", "listening")] = "127.0.0.1"
    port: Annotated[Port, Option("port of REST; 0: any free port, -1: none", "listening")] = 8501
    grpc_port: Annotated[Port, Option("port of gRPC; 0: any free port, -1: none", "listening")] = (
        8500
    )
    token: Annotated[
        str | None,
        Option(f"token that clients must send (default: ${TOKEN_VARIABLE})", "listening"),
    ] = None
    token_file: Annotated[
        Path | None, Option("a file with the token; read again when it changes", "listening")
    ] = None
    tls_certificate: Annotated[Path | None, Option("a PEM file; turns TLS on", "listening")] = None
    tls_key: Annotated[Path | None, Option("a PEM file", "listening")] = None
    tls_client_ca: Annotated[
        Path | None,
        Option("a PEM file; clients need a certificate of this authority", "listening"),
    ] = None
    cors_origin: Annotated[
        str | None,
        Option("origin of web pages that may send requests, or * (default: none)", "listening"),
    ] = None
    max_connections: Annotated[
        Count | None,
        Option("maximum HTTP connections (default: from the limit of open files)", GROUP),
    ] = None
    idle_seconds: Annotated[
        Positive, Option("maximum time of a connection without a complete request", GROUP)
    ] = 60.0
    batching: BatchOptions = field(default_factory=BatchOptions)
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
    request_seconds: Annotated[Positive, Option("maximum time of a request", GROUP)] = 60.0
    drain_seconds: Annotated[
        NotNegative, Option("time at a stop in which new connections are accepted", GROUP)
    ] = 1.0
    stop_seconds: Annotated[
        NotNegative, Option("maximum time of a stop, with the open requests", GROUP)
    ] = 30.0

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token, f"--token or ${TOKEN_VARIABLE}")
            if self.token_file is not None:
                raise ValueError(f"Pass --token (or ${TOKEN_VARIABLE}), or --token-file, not both.")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("--tls-certificate and --tls-key go together. Pass both.")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("--tls-client-ca needs --tls-certificate and --tls-key.")
        files = (self.token_file, self.tls_certificate, self.tls_key, self.tls_client_ca)
        for file in files:
            if file is not None and not file.is_file():
                raise ValueError(f"{file}: no such file.")
        if self.port < 0 and self.grpc_port < 0:
            raise ValueError("--port -1 and --grpc-port -1 leave nothing to listen on.")


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
        """Answer accepted requests, refuse new ones, and unload the models.

        Load balancers first see that the server is not ready. For `drain_seconds`, it answers all
        requests, and tells clients to close their connections. Then it stops listening, and answers
        what is open. It takes `stop_seconds` at most.
        """
        end = asyncio.get_running_loop().time() + self.options.stop_seconds
        self.service.is_stopping = True
        if self._http is not None:
            self._http.announce_stop()
        await asyncio.sleep(min(self.options.drain_seconds, self.options.stop_seconds))
        await self._close(end)

    async def _close(self, end: float) -> None:
        """Stop listening, answer what is open, and unload the models, until a time of the loop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        remaining = end - asyncio.get_running_loop().time()
        stops = []
        if self._grpc is not None:
            stops.append(self._grpc.stop(max(0.0, remaining)))
        if self._http is not None:
            stops.append(self._http.stop(end))
        await asyncio.gather(*stops)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(end, asyncio.get_running_loop().time() + 0.1)):
                await self.service.close()

    def _repeat(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function again and again until the stop."""

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
                f"--host {self.options.host} cannot be resolved: {error}. Pass an address."
            ) from None

    async def _start_http(self) -> None:
        options = self.options
        http = HttpService(self.service, self._token, options.cors_origin)
        self._http = HttpConnections(
            http.application(), options.idle_seconds, self._max_connections
        )
        try:
            self.port = await self._http.start(options.host, options.port, self._certificate)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise OSError(
                f"{options.host}:{options.port} cannot be listened on: {reason}. "
                "Pass another --port."
            ) from None

    async def _start_grpc(self) -> None:
        options = self.options
        milliseconds = int(1000 * options.idle_seconds)
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", options.admission.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", GRPC_STREAMS),
                ("grpc.max_allowed_incoming_connections", self._max_connections),
                # Time of a new connection to begin with the protocol.
                ("grpc.server_handshake_timeout_ms", milliseconds),
            ]
        )
        service = GrpcService(self.service, self._token, options.allow_reload)
        self._grpc.add_generic_rpc_handlers(service.handlers())
        address = f"{options.host}:{options.grpc_port}"
        try:
            if self._certificate is None:
                self.grpc_port = self._grpc.add_insecure_port(address)
            else:
                credentials = self._certificate.grpc_credentials()
                self.grpc_port = self._grpc.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(
                f"{address} cannot be listened on: {error}. Pass another --grpc-port."
            ) from None
        await self._grpc.start()


async def serve_until_stopped(server: Server, started: Callable[[], None]) -> None:
    """Run a server until SIGTERM or SIGINT, then stop it gracefully.

    The process ends in the time that a stop may take, whatever a model or a file system does.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if not stopped.is_set():
            # This thread of Python's runtime needs no lock that a blocked thread may hold.
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
