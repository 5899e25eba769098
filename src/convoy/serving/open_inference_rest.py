"""The Open Inference Protocol, version 2, over REST, with its binary tensor extension."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from aiohttp import web
from convoy.serving import admission, json_text
from convoy.serving.errors import invalid, show
from convoy.serving.images import decode_images
from convoy.serving.json_values import (
    EXPENSIVE_JSON_BYTES,
    decode_base64,
    output_bytes,
    parse,
    to_array,
    to_json,
)
from convoy.serving.request_body import read_body
from convoy.serving.service import Service, Target
from convoy.serving.signature import MAX_DIMENSIONS, TYPES, Arrays, Signature, TensorSpec
from convoy.serving.versions import LoadedVersion
from convoy.types import Json

HEADER_LENGTH = "Inference-Header-Content-Length"

_END = "{_:/*}"


class OpenInferenceApi:
    """Handlers of `/v2...`."""

    def __init__(self, service: Service, version: str) -> None:
        self.service = service
        self.version = version

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for path, handler in {
            "/v2": self._server,
            "/v2/health/live": self._live,
            "/v2/health/ready": self._ready,
        }.items():
            router.add_get(f"{path}{_END}", handler, allow_head=False)
        for version in ("", "/versions/{version:[0-9]+}"):
            model = f"/v2/models/{{model}}{version}"
            router.add_get(f"{model}{_END}", self._model, allow_head=False)
            router.add_get(f"{model}/ready{_END}", self._model_ready, allow_head=False)
            router.add_post(f"{model}/infer{_END}", self._infer)

    async def _server(self, _: web.Request) -> web.Response:
        extensions = ["binary_tensor_data"]
        return web.json_response(
            {"name": "convoy", "version": self.version, "extensions": extensions}
        )

    async def _live(self, _: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _ready(self, _: web.Request) -> web.Response:
        ready = self.service.is_ready
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _model(self, request: web.Request) -> web.Response:
        target = Target.from_path(request.match_info)
        servable = self.service.find(target).servable
        signature, precision = servable.signature, servable.precision
        described: Json = {
            "name": target.model,
            "versions": [str(v) for v in self.service.models[target.model].available],
            "platform": "jax_stablehlo",
            "inputs": [_describe(spec) for spec in signature.inputs],
            "outputs": [_describe(spec) for spec in signature.outputs],
        }
        if precision is not None:
            # The protocol's properties are texts.
            described["properties"] = {"precision": precision.policy}
            if precision.difference is not None:
                described["properties"]["difference"] = str(precision.difference)
        return web.json_response(described)

    async def _model_ready(self, request: web.Request) -> web.Response:
        target = Target.from_path(request.match_info)
        self.service.find(target)
        return web.json_response({"name": target.model, "ready": True})

    async def _infer(self, request: web.Request) -> web.Response:
        target = Target.from_path(request.match_info)
        body = await read_body(request, self.service.max_body_bytes(target))
        length = request.headers.get(HEADER_LENGTH)
        with self.service.using(target, "infer") as loaded:
            signature = loaded.servable.signature
            max_samples = self.service.admission.max_samples
            header, arrays = await self.service.decoders.run(
                lambda: _parse(body, length, signature, max_samples),
                len(body),
                expensive=_header_bytes(length, body) > EXPENSIVE_JSON_BYTES,
            )
            wanted = _wanted_outputs(header, signature)
            outputs = await self.service.run(loaded, arrays)
            return await self.service.decoders.run(
                lambda: _response(target.model, loaded, header, wanted, outputs),
                output_bytes(outputs),
            )


def _describe(spec: TensorSpec) -> Json:
    return {
        "name": spec.name,
        "datatype": TYPES[spec.dtype].open_inference,
        "shape": [-1, *spec.shape],
    }


def _parse(
    body: bytes, length: str | None, signature: Signature, max_samples: int
) -> tuple[Json, Arrays]:
    """Return the JSON header of a request, and the inputs.

    The data of binary tensors follow the header, in the order of the inputs.
    """
    end = _header_bytes(length, body)
    with admission.attempt():
        header = parse(body[:end], signature, max_samples)
        try:
            return header, _inputs(header, memoryview(body)[end:], signature, max_samples)
        finally:
            json_text.free(header.pop("inputs", None))


def _inputs(header: Json, binary: memoryview, signature: Signature, max_samples: int) -> Arrays:
    entries = header.get("inputs")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise invalid("'inputs' must be a list of objects.")
    arrays: Arrays = {}
    for entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or name in arrays:
            raise invalid(
                "The names of inputs must be strings, and each must differ from the others; "
                f"received {show(name)}."
            )
        spec = signature.input(name)
        size = _parameters(entry).get("binary_data_size")
        if size is None:
            arrays[name] = _array(entry, None, spec, max_samples)
            continue
        if type(size) is not int or not 0 <= size <= len(binary):
            raise invalid(
                f"input {name!r}: binary_data_size {show(size)} is not within the body; it has "
                f"{len(binary)} more bytes."
            )
        arrays[name] = _array(entry, bytes(binary[:size]), spec, max_samples)
        binary = binary[size:]
    if len(binary):
        raise invalid(
            f"{len(binary)} bytes of the body belong to no input. Send binary_data_size for each "
            "binary input."
        )
    return arrays


def _header_bytes(length: str | None, body: bytes) -> int:
    """Return the length of a request's JSON header."""
    if length is None:
        return len(body)
    if not length.isdecimal() or len(length) > 12 or int(length) > len(body):
        raise invalid(
            f"{HEADER_LENGTH} {show(length)} is not a length within the body; it has {len(body)} "
            "bytes."
        )
    return int(length)


def _shape(entry: Json) -> tuple[int, ...]:
    shape = entry.get("shape")
    sizes = shape if isinstance(shape, list) else [None]
    if len(sizes) > MAX_DIMENSIONS or any(
        type(size) is not int or not 0 < size < 2**31 for size in sizes
    ):
        raise invalid(
            f"input {entry['name']!r}: shape {show(shape)} is not a list of sizes; expected at "
            f"most {MAX_DIMENSIONS} whole numbers, each 1 or more."
        )
    return tuple(sizes)


def _array(entry: Json, binary: bytes | None, spec: TensorSpec, max_samples: int) -> np.ndarray:
    """Return an input from its binary data, or without them from the JSON of its entry."""
    shape, datatype = _shape(entry), entry.get("datatype")
    data = entry.get("data")
    if binary is None and not isinstance(data, list):
        raise invalid(f"input {spec.name!r} needs 'data', a list.")
    if datatype == "BYTES":
        files = _decode_strings(data, spec) if binary is None else _elements(binary)
        return decode_images(files, shape, spec, max_samples)
    expected = TYPES[spec.dtype].open_inference
    if datatype != expected:
        raise invalid(f"input {spec.name!r} has datatype {show(datatype)}; expected {expected}.")
    admission.check_shape(spec, shape, max_samples)
    values = (
        to_array(data, spec, max_samples).reshape(-1) if binary is None else spec.from_bytes(binary)
    )
    return spec.reshape(values, shape)


def _decode_strings(data: Any, spec: TensorSpec) -> list[bytes]:
    if not all(isinstance(text, str) for text in data):
        raise invalid(f"input {spec.name!r}: the data of BYTES must be strings in base64.")
    return [decode_base64(text) for text in data]


def _elements(data: bytes) -> list[bytes]:
    """Split the data of a BYTES tensor, in which the length of each element precedes it."""
    elements, start = [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "little")
        element = data[start + 4 : start + 4 + size]
        if start + 4 > len(data) or len(element) != size:
            raise invalid(
                "The data of BYTES end within an element. Check its four bytes of length."
            )
        elements.append(element)
        start += 4 + size
    return elements


def _parameters(entry: Json) -> Json:
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid("'parameters' must be an object.")
    return parameters


def _wanted_outputs(header: Json, signature: Signature) -> dict[str, bool]:
    """Return the requested outputs, and whether each is sent as binary data."""
    binary = bool(_parameters(header).get("binary_data_output", False))
    known = [spec.name for spec in signature.outputs]
    entries = header.get("outputs") or [{"name": name} for name in known]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise invalid("'outputs' must be a list of objects.")
    wanted = {}
    for entry in entries:
        if entry.get("name") not in known:
            raise invalid(f"output {show(entry.get('name'))} is not one of {', '.join(known)}.")
        wanted[entry["name"]] = bool(_parameters(entry).get("binary_data", binary))
    return wanted


def _response(
    model: str,
    loaded: LoadedVersion,
    header: Json,
    wanted: Mapping[str, bool],
    outputs: Arrays,
) -> web.Response:
    entries, binary = [], []
    for name, is_binary in wanted.items():
        value = outputs[name]
        entry: Json = {
            "name": name,
            "shape": list(value.shape),
            "datatype": TYPES[value.dtype.name].open_inference,
        }
        if is_binary:
            binary.append(np.ascontiguousarray(value).tobytes())
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = to_json(value.reshape(-1))
        entries.append(entry)
    response: Json = {"model_name": model, "model_version": str(loaded.version), "outputs": entries}
    if isinstance(header.get("id"), str):
        response["id"] = header["id"]
    encoded = json_text.dumps(response)
    json_text.free(response)
    if not binary:
        return web.Response(body=encoded, content_type="application/json")
    return web.Response(
        body=b"".join([encoded, *binary]),
        content_type="application/octet-stream",
        headers={HEADER_LENGTH: str(len(encoded))},
    )
