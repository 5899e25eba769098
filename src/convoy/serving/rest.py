"""TensorFlow Serving's REST API."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from aiohttp import web
from convoy.serving import json_values
from convoy.serving.classes import classes_of, value_of
from convoy.serving.errors import ServingError, invalid, not_found
from convoy.serving.metadata import metadata_json, status_json
from convoy.serving.service import Service, Target
from convoy.serving.signature import Arrays, Signature, check_signature_name
from convoy.serving.versions import LoadedVersion

_WHICH = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_PREDICTION = re.compile(
    rf"/v1/models/(?P<model>[^/:]+){_WHICH}:(?P<method>classify|regress|predict)", re.IGNORECASE
)
_STATUS = re.compile(
    rf"/v1/models(?:/(?P<model>[^/:]+))?{_WHICH}(?P<metadata>/metadata)?", re.IGNORECASE
)
_LABEL = re.compile(r"[a-zA-Z0-9_]+")
_LARGEST_VERSION = 2**63 - 1

# Bodies from this size on are read by a thread, so that others do not wait for it.
_LARGE = 1 << 16


class RestApi:
    """Answers `/v1/...`."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request; errors are JSON with the key `error`."""
        try:
            return await self._answer(request)
        except ServingError as error:
            return error_response(error)

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path
        if request.method == "POST" and (match := _PREDICTION.fullmatch(path)):
            return await self._predict(request, match)
        if request.method == "GET" and (match := _STATUS.fullmatch(path)):
            return self._status(match)
        raise invalid(f"Malformed request: {request.method} {path}")

    async def _predict(self, request: web.Request, match: re.Match[str]) -> web.Response:
        method = match["method"].lower()
        target = target_of(match)
        body = await request.read()
        with self.service.using(target, method) as loaded:
            if len(body) < _LARGE:
                parsed = _read(body, method, loaded)
            else:
                parsed = await asyncio.to_thread(_read, body, method, loaded)
            key, arrays = parsed
            outputs = await self.service.run(loaded, arrays)
            return json_response({key: _result(key, method, outputs, loaded)})

    def _status(self, match: re.Match[str]) -> web.Response:
        if match["model"] is None:
            raise invalid("Missing model name in request.")
        target = target_of(match)
        if match["metadata"]:
            loaded = self.service.find(target)
            return _pretty(metadata_json(target.model, loaded))
        if target.model not in self.service.models:
            raise not_found(f"Could not find any versions of model {target.model}")
        statuses = self.service.model(target.model).status(target.version, target.label)
        return _pretty(status_json(statuses))


def target_of(match: re.Match[str]) -> Target:
    """Return what a path names.

    Raises:
        ServingError: if a version is too large to be one, or a label cannot be one.
    """
    version, label = match["version"], match["label"]
    if version is not None and (len(version) > 19 or int(version) > _LARGEST_VERSION):
        raise invalid(f"Failed to convert version: {version} to numeric.")
    if label is not None and not _LABEL.fullmatch(label):
        raise invalid(f"Label {label!r} has other characters than letters, digits and _.")
    return Target(match["model"], None if version is None else int(version), label)


def _read(body: bytes, method: str, loaded: LoadedVersion) -> tuple[str, Arrays]:
    """Return the key of the answer, and the inputs."""
    signature = loaded.servable.signature
    request = json_values.parse(body)
    name = request.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(
            "JSON Value not formatted correctly. 'signature_name' key must be a string value."
        )
    check_signature_name(name)
    if method != "predict":
        if "examples" not in request:
            raise invalid(f"When method is {method}, key 'examples' is expected and was not found")
        context = request.get("context")
        return "results", json_values.example_inputs(request["examples"], context, signature)
    return _predict_inputs(request, signature)


def _predict_inputs(request: dict[str, Any], signature: Signature) -> tuple[str, Arrays]:
    if "instances" in request and "inputs" in request:
        raise invalid(
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        )
    if "instances" in request:
        return "predictions", json_values.row_inputs(request["instances"], signature)
    if "inputs" in request:
        return "outputs", json_values.column_inputs(request["inputs"], signature)
    raise invalid("Missing 'inputs' or 'instances' key")


def _result(key: str, method: str, outputs: Arrays, loaded: LoadedVersion) -> Any:
    if method == "classify":
        labels, scores = classes_of(outputs, loaded.servable.class_names)
        rows = json_values.to_json(scores)
        return [[list(pair) for pair in zip(labels, row, strict=True)] for row in rows]
    if method == "regress":
        return json_values.to_json(value_of(outputs))
    if key == "predictions":
        return json_values.row_outputs(outputs)
    return json_values.column_outputs(outputs)


def json_response(value: dict[str, Any]) -> web.Response:
    """Answer with an object whose keys are on lines of their own."""
    lines = [f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()]
    text = "{\n" + ",\n".join(lines) + "\n}"
    return web.Response(body=text.encode(), content_type="application/json")


def error_response(error: ServingError) -> web.Response:
    text = f'{{ "error": {json.dumps(error.message)} }}'
    body, status = text.encode(), error.code.http_status
    return web.Response(body=body, status=status, content_type="application/json")


def _pretty(value: dict[str, Any]) -> web.Response:
    body = json.dumps(value, indent=1).encode()
    return web.Response(body=body, content_type="application/json")
