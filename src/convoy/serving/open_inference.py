"""The Open Inference Protocol, version 2, over REST; with binary tensors, as its clients send."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from aiohttp import web
from convoy.serving import json_values
from convoy.serving.errors import ServingError, invalid, not_found
from convoy.serving.images import decode_picture
from convoy.serving.rest import error_response, target_of
from convoy.serving.service import Service
from convoy.serving.signature import Arrays, Signature, Tensor
from convoy.serving.versions import LoadedVersion

HEADER_LENGTH = "Inference-Header-Content-Length"

_TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>\d+))?(?P<label>(?!))?"
    r"(?P<action>/ready|/infer)?"
)


class OpenInferenceApi:
    """Answers `/v2...`."""

    def __init__(self, service: Service, version: str) -> None:
        self.service = service
        self.version = version

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request; errors are JSON with the key `error`."""
        try:
            return await self._answer(request)
        except ServingError as error:
            return error_response(error)

    async def _answer(self, request: web.Request) -> web.Response:
        path, method = request.path.rstrip("/"), request.method
        if method == "GET" and path == "/v2":
            extensions = ["binary_tensor_data"]
            return web.json_response(
                {"name": "convoy", "version": self.version, "extensions": extensions}
            )
        if method == "GET" and path == "/v2/health/live":
            return web.json_response({"live": True})
        if method == "GET" and path == "/v2/health/ready":
            ready = self.service.is_ready
            return web.json_response({"ready": ready}, status=200 if ready else 503)
        match = _PATH.fullmatch(path)
        wanted = "POST" if match and match["action"] == "/infer" else "GET"
        if match is None or method != wanted:
            raise not_found(f"Malformed request: {method} {request.path}")
        if match["action"] == "/infer":
            return await self._infer(request, match)
        return self._model(match)

    def _model(self, match: re.Match[str]) -> web.Response:
        target = target_of(match)
        loaded = self.service.find(target)
        if match["action"] == "/ready":
            return web.json_response({"name": target.model, "ready": True})
        signature = loaded.servable.signature
        return web.json_response(
            {
                "name": target.model,
                "versions": [str(v) for v in self.service.model(target.model).available],
                "platform": "jax_stablehlo",
                "inputs": [_describe(tensor) for tensor in signature.inputs],
                "outputs": [_describe(tensor) for tensor in signature.outputs],
            }
        )

    async def _infer(self, request: web.Request, match: re.Match[str]) -> web.Response:
        target = target_of(match)
        body = await request.read()
        length = request.headers.get(HEADER_LENGTH)
        with self.service.using(target, "infer") as loaded:
            signature = loaded.servable.signature
            parsed = await asyncio.to_thread(_read, body, length, signature)
            asked, arrays = parsed
            wanted = _wanted(asked, signature)
            outputs = await self.service.run(loaded, arrays)
            return _response(target.model, loaded, asked, wanted, outputs)


def _describe(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": _TYPES[tensor.dtype],
        "shape": [-1, *tensor.shape],
    }


def _read(body: bytes, length: str | None, signature: Signature) -> tuple[dict[str, Any], Arrays]:
    """Return what was asked for, and the inputs."""
    end = len(body)
    if length is not None:
        if not length.isdecimal() or len(length) > 12 or int(length) > len(body):
            raise invalid(f"{HEADER_LENGTH} {length!r} is not a length within the body.")
        end = int(length)
    asked = json_values.parse(body[:end])
    entries = asked.get("inputs")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise invalid("'inputs' must be a list of objects.")
    rest = memoryview(body)[end:]
    arrays: Arrays = {}
    for entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or name in arrays:
            raise invalid(f"Each input needs a name of its own; received {name!r}.")
        tensor = signature.input(name)
        shape = _shape(entry)
        size = _parameters(entry).get("binary_data_size")
        if size is None:
            arrays[name] = _from_json(entry, shape, tensor)
            continue
        if type(size) is not int or not 0 <= size <= len(rest):
            raise invalid(f"input {name!r}: binary_data_size {size!r} is not within the body.")
        arrays[name] = _from_bytes(bytes(rest[:size]), entry, shape, tensor)
        rest = rest[size:]
    if len(rest):
        raise invalid(f"{len(rest)} bytes of the body belong to no input.")
    return asked, arrays


def _shape(entry: Mapping[str, Any]) -> tuple[int, ...]:
    shape = entry.get("shape")
    sizes = shape if isinstance(shape, list) else [None]
    if len(sizes) > 16 or any(type(size) is not int or not 0 < size < 2**31 for size in sizes):
        raise invalid(f"input {entry['name']!r}: shape {shape!r} is not a list of sizes.")
    return tuple(sizes)


def _from_json(entry: Mapping[str, Any], shape: tuple[int, ...], tensor: Tensor) -> np.ndarray:
    data = entry.get("data")
    if not isinstance(data, list):
        raise invalid(f"input {tensor.name!r} needs 'data', a list.")
    if entry.get("datatype") == "BYTES":
        if not all(isinstance(text, str) for text in data):
            raise invalid(f"input {tensor.name!r}: BYTES are texts in base64.")
        try:
            files = [base64.b64decode(text, validate=True) for text in data]
        except (binascii.Error, ValueError):
            raise invalid("Unable to base64 decode") from None
        return _pictures(files, shape, tensor)
    _check_type(entry, tensor)
    return _reshaped(json_values.to_array(data, tensor).reshape(-1), shape, tensor)


def _from_bytes(
    data: bytes, entry: Mapping[str, Any], shape: tuple[int, ...], tensor: Tensor
) -> np.ndarray:
    if entry.get("datatype") == "BYTES":
        return _pictures(_pieces(data), shape, tensor)
    _check_type(entry, tensor)
    if len(data) % tensor.numpy_dtype.itemsize:
        raise invalid(f"input {tensor.name!r}: {len(data)} bytes are not whole values.")
    return _reshaped(np.frombuffer(data, tensor.numpy_dtype), shape, tensor)


def _pieces(data: bytes) -> list[bytes]:
    """Divide bytes into pieces that each have their length in front."""
    pieces, start = [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "little")
        piece = data[start + 4 : start + 4 + size]
        if start + 4 > len(data) or len(piece) != size:
            raise invalid("BYTES: a piece is longer than what is there.")
        pieces.append(piece)
        start += 4 + size
    return pieces


def _pictures(files: list[bytes], shape: tuple[int, ...], tensor: Tensor) -> np.ndarray:
    if len(files) != int(np.prod(shape)) or not files:
        raise invalid(f"input {tensor.name!r}: {len(files)} texts for the shape {list(shape)}.")
    return np.stack([decode_picture(file, tensor) for file in files])


def _check_type(entry: Mapping[str, Any], tensor: Tensor) -> None:
    if entry.get("datatype") != _TYPES[tensor.dtype]:
        raise invalid(
            f"input {tensor.name!r} has datatype {entry.get('datatype')!r}; expected "
            f"{_TYPES[tensor.dtype]}."
        )


def _reshaped(values: np.ndarray, shape: tuple[int, ...], tensor: Tensor) -> np.ndarray:
    expected = 1
    for size in shape:
        expected *= size
    if values.size != expected:
        raise invalid(f"input {tensor.name!r}: {values.size} values for the shape {list(shape)}.")
    return values.reshape(shape)


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid("'parameters' must be an object.")
    return parameters


def _wanted(asked: Mapping[str, Any], signature: Signature) -> dict[str, bool]:
    """Return the outputs to be returned, and whether each is to be binary."""
    binary = bool(_parameters(asked).get("binary_data_output", False))
    known = [tensor.name for tensor in signature.outputs]
    entries = asked.get("outputs") or [{"name": name} for name in known]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise invalid("'outputs' must be a list of objects.")
    wanted = {}
    for entry in entries:
        if entry.get("name") not in known:
            raise invalid(f"output {entry.get('name')!r} is not one of {', '.join(known)}.")
        wanted[entry["name"]] = bool(_parameters(entry).get("binary_data", binary))
    return wanted


def _response(
    model: str,
    loaded: LoadedVersion,
    asked: Mapping[str, Any],
    wanted: Mapping[str, bool],
    outputs: Arrays,
) -> web.Response:
    entries, pieces = [], []
    for name, binary in wanted.items():
        value = outputs[name]
        entry: dict[str, Any] = {
            "name": name,
            "shape": list(value.shape),
            "datatype": _TYPES[value.dtype.name],
        }
        if binary:
            pieces.append(np.ascontiguousarray(value).tobytes())
            entry["parameters"] = {"binary_data_size": len(pieces[-1])}
        else:
            entry["data"] = json_values.to_json(value.reshape(-1))
        entries.append(entry)
    answer: dict[str, Any] = {
        "model_name": model,
        "model_version": str(loaded.version),
        "outputs": entries,
    }
    if isinstance(asked.get("id"), str):
        answer["id"] = asked["id"]
    header = json.dumps(answer).encode()
    if not pieces:
        return web.Response(body=header, content_type="application/json")
    return web.Response(
        body=b"".join([header, *pieces]),
        content_type="application/octet-stream",
        headers={HEADER_LENGTH: str(len(header))},
    )
