"""The OpenAPI description of the server's REST APIs."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_MODEL: Json = {"name": "model", "in": "path", "required": True, "schema": _TEXT}
_ERROR: Json = {
    "type": "object",
    "properties": {"error": _TEXT},
    "required": ["error"],
}
_ERRORS = {
    "400": "The request is malformed, or does not fit the model's inputs.",
    "401": "A token is required.",
    "404": "There is no such model or version.",
    "413": "The request is too large.",
    "429": "Too many samples are waiting.",
    "503": "The model is being loaded.",
    "504": "The request took too long.",
}


def describe(version: str) -> Json:
    """Return the description.

    Args:
        version: the server's version.
    """
    predict = {
        "type": "object",
        "properties": {"signature_name": _TEXT, "instances": {"type": "array"}, "inputs": {}},
    }
    examples = {
        "type": "object",
        "properties": {
            "signature_name": _TEXT,
            "context": {"type": "object"},
            "examples": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["examples"],
    }
    tensor = {
        "type": "object",
        "properties": {
            "name": _TEXT,
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": _TEXT,
            "data": {"type": "array"},
        },
        "required": ["name", "shape", "datatype"],
    }
    tensors = {"type": "array", "items": tensor}
    infer = {
        "type": "object",
        "properties": {"id": _TEXT, "inputs": tensors},
        "required": ["inputs"],
    }
    paths = {
        "/v1/models/{model}": _get("States of a model's versions", ["model_version_status"]),
        "/v1/models/{model}/metadata": _get("A model's signature", ["model_spec", "metadata"]),
        "/v1/models/{model}:predict": _post("Outputs for inputs", predict, []),
        "/v1/models/{model}:classify": _post("Classes of examples", examples, ["results"]),
        "/v1/models/{model}:regress": _post("Values of examples", examples, ["results"]),
        "/v2": _get("The server", ["name", "version", "extensions"], of_model=False),
        "/v2/health/live": _get("Whether the server runs", ["live"], of_model=False),
        "/v2/health/ready": _get("Whether all models are available", ["ready"], of_model=False),
        "/v2/models/{model}": _get("A model's inputs and outputs", ["name", "inputs", "outputs"]),
        "/v2/models/{model}/ready": _get("Whether a model is available", ["ready"]),
        "/v2/models/{model}/infer": _post("Outputs for inputs", infer, ["model_name", "outputs"]),
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": "Convoy", "version": version},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _get(summary: str, keys: list[str], of_model: bool = True) -> Json:
    parameters = [_MODEL] if of_model else []
    return {"get": {"summary": summary, "parameters": parameters, "responses": _responses(keys)}}


def _post(summary: str, body: Json, keys: list[str]) -> Json:
    content = {"application/json": {"schema": body}}
    return {
        "post": {
            "summary": summary,
            "parameters": [_MODEL],
            "requestBody": {"required": True, "content": content},
            "responses": _responses(keys),
        }
    }


def _responses(keys: list[str]) -> Json:
    response: Json = {"type": "object"}
    if keys:
        response["required"] = keys
    described = {"200": ("The response.", response)}
    described |= {status: (text, _ERROR) for status, text in _ERRORS.items()}
    return {
        status: {"description": text, "content": {"application/json": {"schema": schema}}}
        for status, (text, schema) in described.items()
    }
