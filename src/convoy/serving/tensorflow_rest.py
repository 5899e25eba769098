"""TensorFlow Serving's REST API: `/v1/models/...`."""

import json
from collections.abc import Sequence

from aiohttp import web
from convoy.serving import admission, json_text, json_values
from convoy.serving.errors import invalid
from convoy.serving.request_body import read_body
from convoy.serving.service import Service, Target
from convoy.serving.signature import Arrays, Signature
from convoy.serving.tensorflow_methods import (
    check_signature_name,
    class_scores,
    regression_values,
    signature_definitions,
)
from convoy.serving.versions import LoadedVersion, VersionStatus
from convoy.types import Json
from google.protobuf.json_format import MessageToDict

# TensorFlow Serving ignores the case of all words but `v1` and the names.
_MODELS = "/v1/{_:(?i:models)}"
_MODEL = f"{_MODELS}/{{model:[^/:]+}}"
_VERSIONS = ("", "/{_v:(?i:versions)}/{version:[0-9]+}", "/{_v:(?i:labels)}/{label:[^/:]+}")
_METHOD = "{method:(?i:predict|classify|regress)}"


class RestApi:
    """Handlers of `/v1/...`."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def add_routes(self, router: web.UrlDispatcher) -> None:
        for version in _VERSIONS:
            router.add_post(f"{_MODEL}{version}:{_METHOD}", self._predict)
            router.add_get(f"{_MODEL}{version}", self._status, allow_head=False)
            path = f"{_MODEL}{version}/{{_m:(?i:metadata)}}"
            router.add_get(path, self._metadata, allow_head=False)
        router.add_get(_MODELS, _no_model, allow_head=False)

    async def _predict(self, request: web.Request) -> web.Response:
        method = request.match_info["method"].lower()
        target = Target.from_path(request.match_info)
        body = await read_body(request, self.service.max_body_bytes(target))
        max_samples = self.service.admission.max_samples
        with self.service.using(target, method) as loaded:
            key, arrays = await self.service.decoders.run(
                lambda: _parse(body, method, loaded, max_samples),
                len(body),
                expensive=len(body) > json_values.EXPENSIVE_JSON_BYTES,
            )
            outputs = await self.service.run(loaded, arrays)
            text = await self.service.decoders.run(
                lambda: _encode(key, method, outputs, loaded), json_values.output_bytes(outputs)
            )
            return web.Response(body=text, content_type="application/json")

    async def _status(self, request: web.Request) -> web.Response:
        target = Target.from_path(request.match_info)
        return _indented(status_json(self.service.status(target)))

    async def _metadata(self, request: web.Request) -> web.Response:
        target = Target.from_path(request.match_info)
        loaded = self.service.find(target)
        definitions = MessageToDict(
            signature_definitions(loaded.servable.signature),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        spec = {"name": target.model, "signature_name": "", "version": str(loaded.version)}
        return _indented({"model_spec": spec, "metadata": {"signature_def": definitions}})


async def _no_model(_: web.Request) -> web.Response:
    raise invalid("Missing model name in request.")


def _parse(body: bytes, method: str, loaded: LoadedVersion, max_samples: int) -> tuple[str, Arrays]:
    """Return the key of the response, and the inputs."""
    with admission.attempt():
        request = json_values.parse(body, loaded.servable.signature, max_samples)
        try:
            return _inputs(request, method, loaded.servable.signature, max_samples)
        finally:
            json_text.free(request)


def _inputs(
    request: Json, method: str, signature: Signature, max_samples: int
) -> tuple[str, Arrays]:
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
        examples = request["examples"]
        return "results", json_values.from_examples(examples, context, signature, max_samples)
    return _predict_inputs(request, signature, max_samples)


def _predict_inputs(request: Json, signature: Signature, max_samples: int) -> tuple[str, Arrays]:
    if "instances" in request and "inputs" in request:
        raise invalid(
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        )
    if "instances" in request:
        return "predictions", json_values.row_inputs(request["instances"], signature, max_samples)
    if "inputs" in request:
        return "outputs", json_values.column_inputs(request["inputs"], signature, max_samples)
    raise invalid("Missing 'inputs' or 'instances' key")


def _encode(key: str, method: str, outputs: Arrays, loaded: LoadedVersion) -> bytes:
    result = _result(key, method, outputs, loaded)
    text = b'{\n    "%b": %b\n}' % (key.encode(), json_text.dumps(result))
    json_text.free(result)
    return text


def _result(key: str, method: str, outputs: Arrays, loaded: LoadedVersion) -> json_values.Json:
    if method == "classify":
        labels, scores = class_scores(outputs, loaded.servable.class_names)
        rows = json_values.to_json(scores)
        return [[list(pair) for pair in zip(labels, row, strict=True)] for row in rows]
    if method == "regress":
        return json_values.to_json(regression_values(outputs))
    if key == "predictions":
        return json_values.row_outputs(outputs)
    return json_values.column_outputs(outputs)


def status_json(statuses: Sequence[VersionStatus]) -> Json:
    """Return the JSON form of a `GetModelStatusResponse`."""
    return {
        "model_version_status": [
            {
                "version": str(status.version),
                "state": status.state.name,
                "status": {"error_code": status.code.name, "error_message": status.message},
            }
            for status in statuses
        ]
    }


def _indented(value: Json) -> web.Response:
    body = json.dumps(value, indent=1).encode()
    return web.Response(body=body, content_type="application/json")
