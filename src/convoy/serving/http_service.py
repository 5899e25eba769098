"""The HTTP application of a server: its routes, and the checks that every request passes."""

import base64
import contextlib
import functools
import hashlib
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path

import yaml
from aiohttp import web
from aiohttp.http import HttpProcessingError
from convoy.serving.credentials import Token
from convoy.serving.errors import Code, ServingError, describe_error, shorten, show
from convoy.serving.open_inference_rest import OpenInferenceApi
from convoy.serving.service import Service
from convoy.serving.tensorflow_rest import RestApi, status_json
from convoy.types import Json

logger = logging.getLogger("convoy.serving")

PAGE = Path(__file__).with_name("page.html")
OPENAPI = Path(__file__).with_name("openapi.yaml")
# Paths that need no token: health probes, and the page, which holds no data itself.
PUBLIC_PATHS = ("/", "/v2/health/live", "/v2/health/ready")
# Status of a path or method that an API does not have, by the first part of the path.
UNKNOWN_PATH = {"/v1": 400, "/v2": 404}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ALLOW_ORIGIN = "Access-Control-Allow-Origin"
CORS = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "600",
}


class HttpService:
    """Handles HTTP requests.

    Args:
        service: the models.
        token: the bearer token that clients must send.
        cors_origin: origin of web pages that may send requests, or `*`, if any.
    """

    def __init__(self, service: Service, token: Token, cors_origin: str | None = None) -> None:
        self.service = service
        self._token = token
        self._cors = {} if cors_origin is None else {**CORS, ALLOW_ORIGIN: cors_origin}

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard])
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
        """Answer a request, and add the security headers for browsers."""
        if self._cors and request.method == "OPTIONS":
            return web.Response(status=204, headers=self._cors)
        response = await self._answer(request, handler)
        response.headers.update(SECURITY_HEADERS)
        if self._cors:
            response.headers[ALLOW_ORIGIN] = self._cors[ALLOW_ORIGIN]
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token, admit the request, limit its time, and answer failures in JSON."""
        try:
            if request.path not in PUBLIC_PATHS:
                given = request.headers.get("Authorization", "")
                self._token.check(given, "header Authorization")
            with self.service.admission.request(request.protocol):
                async with self.service.deadline():
                    return await handler(request)
        except ServingError as error:
            return error_response(error.http_status, error.message, error.retry_seconds)
        except ConnectionResetError:
            # The connection is gone; this response is not sent.
            return error_response(Code.CANCELLED.http_status, "The client closed the connection.")
        except (web.RequestPayloadError, HttpProcessingError):
            return error_response(400, "The body of the request does not match its headers.")
        except web.HTTPException as error:
            status = UNKNOWN_PATH.get(request.path[:3], error.status)
            named = shorten(f"{request.method} {request.path}")
            return error_response(status, f"Malformed request: {named}")
        except Exception as error:  # A client gets an answer in JSON, whatever happens.
            named = show(f"{request.method} {request.path}")
            logger.error("%s: %s", named, describe_error(error))
            return error_response(500, "The server failed to handle the request.")

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response({"models": [self._describe(name) for name in self.service.models]})

    def _describe(self, name: str) -> Json:
        versions = self.service.models[name]
        milliseconds = self.service.metrics.percentiles(name)
        described: Json = {"name": name, "versions": [], "milliseconds": milliseconds}
        with contextlib.suppress(ServingError):
            described["versions"] = status_json(versions.status())["model_version_status"]
        described["precisions"] = {
            version: precision.policy
            for version in versions.available
            if (precision := versions.find(version).servable.precision) is not None
        }
        with contextlib.suppress(ServingError):
            servable = versions.find().servable
            described |= {
                "inputs": servable.signature.to_json()["inputs"],
                "takes_images": [spec.is_image for spec in servable.signature.inputs] == [True],
                "classes": list(servable.class_names),
                "batch_sizes": list(servable.batch_sizes),
                "compiled_from": servable.compiled_from,
                "fallback": servable.fallback,
            }
        return described

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.service.metrics_text(), content_type="text/plain")


async def _openapi(_: web.Request) -> web.Response:
    return web.json_response(describe_api(_version()))


@functools.cache
def describe_api(version: str) -> Json:
    """Return the OpenAPI description of the REST APIs.

    Args:
        version: the server's version.
    """
    description = yaml.safe_load(OPENAPI.read_text())
    description["info"]["version"] = version
    return description


async def _page(_: web.Request) -> web.Response:
    text = PAGE.read_text()
    headers = {"Content-Security-Policy": page_policy(text)}
    return web.Response(text=text, content_type="text/html", headers=headers)


def page_policy(page: str) -> str:
    """Return the content security policy of a page: only its own script and style are used."""
    policy = ["default-src 'none'", "connect-src 'self'", "img-src blob:"]
    policy += ["base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]
    for tag in ("script", "style"):
        contents = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in contents]
        policy.append(" ".join([f"{tag}-src", *(f"'sha256-{text.decode()}'" for text in hashes)]))
    return "; ".join(policy)


def _version() -> str:
    return metadata.version("keras-convoy")


def error_response(status: int, message: str, retry_seconds: float | None = None) -> web.Response:
    """Return the response to a request that fails, in the JSON of both APIs."""
    text = f'{{ "error": {json.dumps(message)} }}'
    headers = {} if retry_seconds is None else {"Retry-After": str(math.ceil(retry_seconds))}
    return web.Response(
        body=text.encode(), status=status, content_type="application/json", headers=headers
    )
