"""The HTTP application of a server: its routes, and the checks that every request passes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path

import yaml
from aiohttp import web
from aiohttp.http import HttpProcessingError
from convoy.serving.errors import Code, ServingError
from convoy.serving.open_inference_rest import OpenInferenceApi
from convoy.serving.service import Service, check_token
from convoy.serving.tensorflow_rest import RestApi, status_json
from convoy.types import Json

PAGE = Path(__file__).with_name("page.html")
OPENAPI = Path(__file__).with_name("openapi.yaml")
# Paths that need no token: health probes, and the page, which holds no data itself.
PUBLIC_PATHS = ("/", "/v2/health/live", "/v2/health/ready")
# Status of a path or method that an API does not have, by the first part of the path.
UNKNOWN_PATH = {"/v1": 400, "/v2": 404}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpService:
    """Handles HTTP requests.

    Args:
        service: the models.
        token: bearer token that clients must send, if any.
        max_request_bytes: maximum size of a request's body.
    """

    def __init__(self, service: Service, token: str | None, max_request_bytes: int) -> None:
        self.service = service
        self._token = token
        self._max_request_bytes = max_request_bytes

    def application(self) -> web.Application:
        application = web.Application(
            client_max_size=self._max_request_bytes, middlewares=[self._guard]
        )
        router = application.router
        router.add_get("/", _page)
        router.add_get("/status.json", self._status)
        router.add_get("/openapi.json", _openapi)
        router.add_get("/metrics", self._metrics)
        router.add_get("/monitoring/prometheus/metrics", self._metrics)
        RestApi(self.service).add_routes(router)
        OpenInferenceApi(self.service, _version()).add_routes(router)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token, limit the time, and answer every failure in JSON."""
        try:
            if request.path not in PUBLIC_PATHS:
                given = request.headers.get("Authorization", "")
                check_token(self._token, given, "header Authorization")
            async with self.service.deadline():
                return await handler(request)
        except ServingError as error:
            return _error(error.code.http_status, error.message)
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"A request has at most {self._max_request_bytes} bytes.")
        except ConnectionResetError:
            # The connection is gone; this response is not sent.
            return _error(Code.CANCELLED.http_status, "The client closed the connection.")
        except (web.RequestPayloadError, HttpProcessingError):
            return _error(400, "The body of the request does not match its headers.")
        except web.HTTPException as error:
            status = UNKNOWN_PATH.get(request.path[:3], error.status)
            return _error(status, f"Malformed request: {request.method} {request.path}")

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"models": [self._describe(name) for name in self.service.models]})

    def _describe(self, name: str) -> Json:
        versions = self.service.models[name]
        milliseconds = self.service.metrics.percentiles(name)
        described: Json = {"name": name, "versions": [], "milliseconds": milliseconds}
        with contextlib.suppress(ServingError):
            described["versions"] = status_json(versions.status())["model_version_status"]
        with contextlib.suppress(ServingError):
            servable = versions.find().servable
            described |= {
                "inputs": servable.signature.to_json()["inputs"],
                "takes_images": [spec.is_image for spec in servable.signature.inputs] == [True],
                "classes": list(servable.class_names),
                "batch_sizes": list(servable.batch_sizes),
                "compiled_from": servable.compiled_from,
            }
        return described

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.service.metrics_text(), content_type="text/plain")


async def _openapi(_: web.Request) -> web.Response:
    return web.json_response(describe_api(_version()))


def describe_api(version: str) -> Json:
    """Return the OpenAPI description of the REST APIs.

    Args:
        version: the server's version.
    """
    description = yaml.safe_load(OPENAPI.read_text())
    description["info"]["version"] = version
    return description


async def _page(_: web.Request) -> web.Response:
    return web.Response(
        text=PAGE.read_text(),
        content_type="text/html",
        headers={"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src blob:"},
    )


def _version() -> str:
    return metadata.version("keras-convoy")


def _error(status: int, message: str) -> web.Response:
    text = f'{{ "error": {json.dumps(message)} }}'
    return web.Response(body=text.encode(), status=status, content_type="application/json")
