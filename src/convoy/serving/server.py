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

import grpc
from aiohttp import web
from convoy.serving.batching import BatchOptions
from convoy.serving.grpc_service import GrpcService
from convoy.serving.http_service import HttpService
from convoy.serving.service import Service
from convoy.serving.versions import ModelConfig

logger = logging.getLogger("convoy.serving")


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server.

    Attributes:
        host: address to listen on.
        port: port of REST and the page; 0 takes a free one, `None` turns REST off.
        grpc_port: port of gRPC; 0 takes a free one, `None` turns gRPC off.
        poll_seconds: time between two searches for new versions; 0 searches only once.
        request_seconds: maximum time for one request.
        stop_seconds: maximum time that a stop waits for accepted requests.
        max_request_bytes: maximum size of a request's body.
        token: bearer token that clients must send, if any.
        certificate: file with a TLS certificate in PEM format; turns TLS on.
        key: file with the certificate's private key in PEM format.
        may_reload: whether gRPC clients may change the list of models.
        batching: options of batching.
    """

    host: str = "127.0.0.1"
    port: int | None = 8501
    grpc_port: int | None = 8500
    poll_seconds: float = 1.0
    request_seconds: float = 60.0
    stop_seconds: float = 30.0
    max_request_bytes: int = 64 << 20
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    may_reload: bool = False
    batching: BatchOptions = field(default_factory=BatchOptions)


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
        scheme = "http" if options.certificate is None else "https"
        rest = f"REST and the page: {scheme}://{options.host}:{self.port}/"
        remote = f"gRPC: {options.host}:{self.grpc_port}"
        return [rest] * (options.port is not None) + [remote] * (options.grpc_port is not None)

    async def start(self) -> None:
        """Open the ports, load the models, and start polling for new versions.

        Raises:
            OSError: if a port cannot be opened, or a certificate cannot be read.
        """
        try:
            if self.options.port is not None:
                await self._start_http(self.options.port)
            if self.options.grpc_port is not None:
                await self._start_grpc(self.options.grpc_port)
        except OSError:
            await self.stop()
            raise
        addresses = "; ".join(self.addresses)
        logger.info("listening, and loading %s: %s", ", ".join(self.service.models), addresses)
        await self.service.poll()
        if self.options.poll_seconds:
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

    async def _start_http(self, port: int) -> None:
        options = self.options
        http = HttpService(self.service, options.token, options.max_request_bytes)
        self._runner = web.AppRunner(
            http.application(),
            access_log=None,
            shutdown_timeout=options.stop_seconds,
            handle_signals=False,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, options.host, port, ssl_context=self._tls_context())
        try:
            await site.start()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise OSError(
                f"{options.host}:{port} cannot be listened on: {reason}. Pass another --port."
            ) from None
        self.port = self._runner.addresses[0][1]

    def _tls_context(self) -> ssl.SSLContext | None:
        if self.options.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.options.certificate, self.options.key)
        return context

    async def _start_grpc(self, port: int) -> None:
        options = self.options
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", options.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        service = GrpcService(self.service, options.token, options.may_reload)
        self._grpc.add_generic_rpc_handlers(service.handlers())
        address = f"{options.host}:{port}"
        try:
            if options.certificate is None:
                self.grpc_port = self._grpc.add_insecure_port(address)
            else:
                key = options.key or options.certificate
                pair = (key.read_bytes(), options.certificate.read_bytes())
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
