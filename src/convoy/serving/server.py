"""A server process: its ports, its life cycle, and the polling for new versions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import grpc
from aiohttp import web
from convoy.configuration import Configuration, Count, Option
from convoy.serving.batching import GROUP, BatchOptions
from convoy.serving.client import TOKEN_VARIABLE
from convoy.serving.http_service import HttpService
from convoy.serving.service import Service
from convoy.serving.tensorflow_grpc import GrpcService
from convoy.serving.versions import ModelConfig
from pydantic import Field

logger = logging.getLogger("convoy.serving")


Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class ServerOptions(Configuration):
    """Options of a server, with the flags of `convoy serve` for them."""

    poll_seconds: Annotated[
        float, Option("time between searches for new versions; 0: search once", "models")
    ] = 1.0
    allow_reload: Annotated[
        bool, Option("whether gRPC clients may change the list of models", "models")
    ] = False
    host: Annotated[str, Option("address to listen on", "listening")] = "127.0.0.1"
    port: Annotated[int, Option("port of REST; 0: any free port, -1: none", "listening")] = 8501
    grpc_port: Annotated[int, Option("port of gRPC; 0: any free port, -1: none", "listening")] = (
        8500
    )
    token: Annotated[
        str | None,
        Option(f"token that clients must send (default: ${TOKEN_VARIABLE})", "listening"),
    ] = None
    tls_certificate: Annotated[Path | None, Option("a PEM file; turns TLS on", "listening")] = None
    tls_key: Annotated[Path | None, Option("a PEM file", "listening")] = None
    batching: BatchOptions = field(default_factory=BatchOptions)
    max_request_bytes: Annotated[Count, Option("maximum size of a request", GROUP)] = 64 << 20
    request_seconds: Annotated[Positive, Option("maximum time of a request", GROUP)] = 60.0
    stop_seconds: Annotated[
        float, Option("maximum time to finish accepted requests at a stop", GROUP)
    ] = 30.0

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("--tls-certificate and --tls-key go together. Pass both.")
        for file in (self.tls_certificate, self.tls_key):
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
        self.service = Service(models, options.batching, options.request_seconds)
        self.port = self.grpc_port = 0
        self._polling: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
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
            if self.options.port >= 0:
                await self._start_http()
            if self.options.grpc_port >= 0:
                await self._start_grpc()
        except OSError:
            await self.stop()
            raise
        addresses = "; ".join(self.addresses)
        logger.info("listening, and loading %s: %s", ", ".join(self.service.models), addresses)
        await self.service.poll()
        if self.options.poll_seconds > 0:
            self._polling = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Refuse new requests, answer accepted ones, and unload the models."""
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling
        stops = []
        if self._grpc is not None:
            stops.append(self._grpc.stop(self.options.stop_seconds))
        if self._runner is not None:
            stops.append(self._runner.cleanup())
        await asyncio.gather(*stops)
        await self.service.close()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll_seconds)
            try:
                await self.service.poll()
            except OSError as error:
                logger.error("The search for new versions failed: %s", error)

    async def _start_http(self) -> None:
        options = self.options
        http = HttpService(self.service, options.token, options.max_request_bytes)
        self._runner = web.AppRunner(
            http.application(),
            access_log=None,
            shutdown_timeout=options.stop_seconds,
            handle_signals=False,
        )
        await self._runner.setup()
        tls = self._tls_context()
        site = web.TCPSite(self._runner, options.host, options.port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise OSError(
                f"{options.host}:{options.port} cannot be listened on: {reason}. "
                "Pass another --port."
            ) from None
        self.port = self._runner.addresses[0][1]

    def _tls_context(self) -> ssl.SSLContext | None:
        if self.options.tls_certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.options.tls_certificate, self.options.tls_key)
        return context

    async def _start_grpc(self) -> None:
        options = self.options
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", options.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        service = GrpcService(self.service, options.token, options.allow_reload)
        self._grpc.add_generic_rpc_handlers(service.handlers())
        address = f"{options.host}:{options.grpc_port}"
        try:
            if options.tls_certificate is None or options.tls_key is None:
                self.grpc_port = self._grpc.add_insecure_port(address)
            else:
                pair = (options.tls_key.read_bytes(), options.tls_certificate.read_bytes())
                self.grpc_port = self._grpc.add_secure_port(
                    address, grpc.ssl_server_credentials([pair])
                )
        except RuntimeError as error:
            raise OSError(
                f"{address} cannot be listened on: {error}. Pass another --grpc-port."
            ) from None
        await self._grpc.start()


async def serve_until_stopped(server: Server, started: Callable[[], None]) -> None:
    """Run a server until SIGTERM or SIGINT, then stop it gracefully."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
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
