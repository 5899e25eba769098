"""The server: both ports, the page, and the clock that looks for new versions."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import signal
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web
from aiohttp.http import HttpProcessingError
from convoy.serving import openapi
from convoy.serving.batching import BatchOptions
from convoy.serving.errors import Code, ServingError
from convoy.serving.grpc_service import GrpcApi
from convoy.serving.metadata import status_json
from convoy.serving.open_inference import OpenInferenceApi
from convoy.serving.rest import RestApi, error_response
from convoy.serving.service import Service
from convoy.serving.versions import ModelConfig

logger = logging.getLogger("convoy.serving")

PAGE = Path(__file__).with_name("page.html")
# Who may look at them without a token: probes, and the page, which has no data in it.
OPEN = ("/", "/v2/health/live", "/v2/health/ready")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class ServerOptions:
    """How a server listens.

    Attributes:
        host: the address to listen on.
        port: of REST and the page; 0 takes a free one, `None` leaves it out.
        grpc_port: of gRPC, in the same way.
        poll_seconds: between two looks for new versions; 0 looks only once.
        request_seconds: after which a request is given up.
        stop_seconds: that a stop waits for what was accepted.
        max_request_bytes: of a request's body.
        token: what clients must send as a bearer token.
        certificate: and `key` turn on TLS: files in PEM format.
        may_reload: whether clients may change which models are served, by gRPC.
        batching: how requests are put together.
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
        models: which.
        options: how.

    Attributes:
        port: of REST, once it has started.
        grpc_port: of gRPC, once it has started.
    """

    def __init__(self, models: list[ModelConfig], options: ServerOptions) -> None:
        self.options = options
        self.service = Service(models, options.batching, options.request_seconds)
        self.port = self.grpc_port = 0
        self._polling: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._grpc: Any = None

    @property
    def addresses(self) -> list[str]:
        """What each port is for, and where it is, once it has started."""
        options = self.options
        scheme = "http" if options.certificate is None else "https"
        rest = f"REST and the page: {scheme}://{options.host}:{self.port}/"
        remote = f"gRPC: {options.host}:{self.grpc_port}"
        return [rest] * (options.port is not None) + [remote] * (options.grpc_port is not None)

    async def start(self) -> None:
        """Open the ports, load the models, and go on looking for new versions.

        Raises:
            OSError: if a port cannot be had, or a certificate cannot be read.
        """
        try:
            if self.options.port is not None:
                await self._start_http(self.options.port)
            if self.options.grpc_port is not None:
                await self._start_grpc(self.options.grpc_port)
        except OSError:
            await self.stop()
            raise
        where = "; ".join(self.addresses)
        logger.info("listening, and loading %s: %s", ", ".join(self.service.models), where)
        await self.service.poll()
        if self.options.poll_seconds:
            self._polling = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        """Take no more requests, answer those that were accepted, and let go of the models."""
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
                logger.error("Looking for new versions failed: %s", error)

    async def _start_http(self, port: int) -> None:
        application = web.Application(
            client_max_size=self.options.max_request_bytes, middlewares=[self._guard]
        )
        rest = RestApi(self.service)
        open_inference = OpenInferenceApi(self.service, metadata.version("keras-convoy"))
        routes = application.router
        routes.add_get("/", _page)
        routes.add_get("/status.json", self._status)
        routes.add_get("/openapi.json", _openapi)
        routes.add_get("/metrics", self._metrics)
        routes.add_get("/monitoring/prometheus/metrics", self._metrics)
        routes.add_route("*", "/{version:v1}/{rest:.*}", rest.handle)
        routes.add_route("*", "/{version:v2}{rest:.*}", open_inference.handle)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=self.options.stop_seconds,
            handle_signals=False,
        )
        await self._runner.setup()
        context = self._tls()
        site = web.TCPSite(self._runner, self.options.host, port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else error
            raise OSError(
                f"{self.options.host}:{port} cannot be listened on: {reason}. Pass another --port."
            ) from None
        self.port = self._runner.addresses[0][1]

    def _tls(self) -> ssl.SSLContext | None:
        if self.options.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.options.certificate, self.options.key)
        return context

    async def _start_grpc(self, port: int) -> None:
        limit = self.options.max_request_bytes
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        api = GrpcApi(self.service, self.options.token, self.options.may_reload)
        self._grpc.add_generic_rpc_handlers(api.handlers())
        address = f"{self.options.host}:{port}"
        try:
            if self.options.certificate is None:
                self.grpc_port = self._grpc.add_insecure_port(address)
            else:
                key = self.options.key or self.options.certificate
                pair = (key.read_bytes(), self.options.certificate.read_bytes())
                self.grpc_port = self._grpc.add_secure_port(
                    address, grpc.ssl_server_credentials([pair])
                )
        except RuntimeError as error:
            raise OSError(
                f"{address} cannot be listened on: {error}. Pass another --grpc-port."
            ) from None
        await self._grpc.start()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Ask for the token, and answer in JSON whatever goes wrong."""
        token = self.options.token
        if token is not None and request.path not in OPEN:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token}".encode()):
                message = "Send the header Authorization: Bearer ..."
                return error_response(ServingError(Code.UNAUTHENTICATED, message))
        try:
            async with asyncio.timeout(self.options.request_seconds):
                return await handler(request)
        except TimeoutError:
            message = f"The request took longer than {self.options.request_seconds:g} seconds."
            return error_response(ServingError(Code.DEADLINE_EXCEEDED, message))
        except web.HTTPRequestEntityTooLarge:
            message = f"A request has at most {self.options.max_request_bytes} bytes."
            return _plain_error(413, message)
        except ConnectionResetError:
            # The client has left; nobody reads this.
            return _plain_error(Code.CANCELLED.http_status, "The client closed the connection.")
        except (web.RequestPayloadError, HttpProcessingError):
            return _plain_error(400, "The body of the request is not what its headers say.")
        except web.HTTPException as error:
            return _plain_error(error.status, f"Malformed request: {request.method} {request.path}")

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"models": [self._describe(name) for name in self.service.models]})

    def _describe(self, name: str) -> dict[str, Any]:
        versions = self.service.models[name]
        described: dict[str, Any] = {
            "name": name,
            "versions": [],
            "milliseconds": self.service.metrics.percentiles(name),
        }
        with contextlib.suppress(ServingError):
            described["versions"] = status_json(versions.status())["model_version_status"]
        with contextlib.suppress(ServingError):
            servable = versions.find().servable
            described |= {
                "inputs": servable.signature.as_json()["inputs"],
                "takes_images": [tensor.is_image for tensor in servable.signature.inputs] == [True],
                "classes": list(servable.class_names),
                "batch_sizes": list(servable.batch_sizes),
                "compiled_from": servable.compiled_from,
            }
        return described

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.service.metrics_text(), content_type="text/plain")


async def _openapi(_: web.Request) -> web.Response:
    return web.json_response(openapi.describe(metadata.version("keras-convoy")))


async def _page(_: web.Request) -> web.Response:
    return web.Response(
        text=PAGE.read_text(),
        content_type="text/html",
        headers={"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src blob:"},
    )


def _plain_error(status: int, message: str) -> web.Response:
    text = f'{{ "error": {json.dumps(message)} }}'
    return web.Response(body=text.encode(), status=status, content_type="application/json")


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
