"""Clients for a server's gRPC and REST ports, as small as a measurement needs them."""

from __future__ import annotations

import difflib
import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import numpy as np
from convoy.serving.metadata import DATA_TYPES
from convoy.serving.protocol import MODELS_KEY, SERVING, message
from convoy.serving.signature import Tensor

_NAMES = {number: name for name, (_, number) in DATA_TYPES.items()}
_NAMES_IN_JSON = {text: name for name, (text, _) in DATA_TYPES.items()}
# The first request may find the server still loading.
FIRST_SECONDS = 1000.0
# Of models, in a message.
MOST_NAMES = 10


class RequestError(Exception):
    """The server did not answer as it should have."""


class Client(Protocol):
    """Asks one model of a server.

    Attributes:
        input: what the model takes.
    """

    input: Tensor

    def predict(self, images: np.ndarray, seconds: float) -> np.ndarray:
        """Return the model's only output.

        Raises:
            RequestError: if the server refuses, or does not answer in time.
        """

    def close(self) -> None: ...


@dataclass(frozen=True)
class Address:
    """Where a model is.

    Attributes:
        host: of the server.
        port: of the protocol.
        model: its name.
        token: that the server asks for.
    """

    host: str
    port: int
    model: str
    token: str | None = None


def await_listener(address: Address, seconds: float, tell: Callable[[str], None]) -> None:
    """Return when something listens at an address; tell at once if nothing does yet.

    Raises:
        RequestError: if nothing does after some seconds.
    """
    place, told, end = f"{address.host}:{address.port}", False, time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address.host, address.port), timeout=seconds or None).close()
            return
        except OSError as error:
            if time.monotonic() >= end:
                reason = error.strerror or error
                raise RequestError(
                    f"{place} cannot be reached: {reason}. Start convoy serve, or pass --host and "
                    "--port."
                ) from None
        if not told:
            tell(f"waiting for a server at {place} for at most {seconds:g} s (Ctrl-C stops this)")
            told = True
        time.sleep(0.2)


def served_instead(model: str, names: Sequence[str]) -> str:
    """Return a sentence for a model that a server does not have: what it has."""
    if model in names or not names:
        return ""
    shown = ", ".join(names[:MOST_NAMES]) + ", ..." * (len(names) > MOST_NAMES)
    near = difflib.get_close_matches(model, names, 1)
    question = f"; did you mean {near[0]}?" if near else "."
    return f". The server has {shown}{question}"


def _only_input(inputs: Mapping[str, Any]) -> tuple[str, Any]:
    if len(inputs) > 1:
        raise RequestError(
            f"The model takes {' and '.join(sorted(inputs))}, and images are sent to models with "
            "one input. Send it a request by curl."
        )
    return next(iter(inputs.items()))


class GrpcClient:
    """Speaks `PredictionService`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(f"{address.host}:{address.port}", unlimited)
        try:
            self.input = self._find_input()
        except RequestError:
            self.close()
            raise

    def _call(self, method: str, request: Any, answer: str, seconds: float) -> Any:
        call = self._channel.unary_unary(
            f"/{SERVING}.PredictionService/{method}",
            request_serializer=lambda value: value.SerializeToString(),
            response_deserializer=message(f"{SERVING}.{answer}").FromString,
        )
        token = self._address.token
        sent = () if token is None else (("authorization", f"Bearer {token}"),)
        try:
            return call(request, timeout=seconds, metadata=sent, wait_for_ready=True)
        except grpc.RpcError as error:
            told = f"{error.code().name}: {error.details()}"
            raise RequestError(told + self._instead(error)) from None

    def _instead(self, error: Any) -> str:
        sent = dict(error.trailing_metadata() or ())
        return served_instead(self._address.model, json.loads(sent.get(MODELS_KEY, "[]")))

    def _find_input(self) -> Tensor:
        request = message(f"{SERVING}.GetModelMetadataRequest")()
        request.model_spec.name = self._address.model
        request.metadata_field.append("signature_def")
        answer = self._call("GetModelMetadata", request, "GetModelMetadataResponse", FIRST_SECONDS)
        signatures = message(f"{SERVING}.SignatureDefMap").FromString(
            answer.metadata["signature_def"].value
        )
        inputs = signatures.signature_def["serving_default"].inputs
        name, info = _only_input(inputs)
        shape = tuple(dim.size for dim in info.tensor_shape.dim)[1:]
        return Tensor(name, _NAMES[info.dtype], shape)

    def predict(self, images: np.ndarray, seconds: float) -> np.ndarray:
        request = message(f"{SERVING}.PredictRequest")()
        request.model_spec.name = self._address.model
        tensor = request.inputs[self.input.name]
        tensor.dtype = DATA_TYPES[images.dtype.name][1]
        for size in images.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = images.tobytes()
        answer = self._call("Predict", request, "PredictResponse", seconds)
        (output,) = answer.outputs.values()
        shape = [dim.size for dim in output.tensor_shape.dim]
        dtype = np.dtype(_NAMES[output.dtype])
        if output.tensor_content:
            return np.frombuffer(output.tensor_content, dtype).reshape(shape)
        return np.array(output.float_val, dtype).reshape(shape)

    def close(self) -> None:
        self._channel.close()


class RestClient:
    """Speaks the REST API, in the row form."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[http.client.HTTPConnection] = []
        try:
            self.input = self._find_input()
        except RequestError:
            self.close()
            raise

    def _call(self, method: str, path: str, body: bytes | None, seconds: float) -> Any:
        url = f"/v1/models/{self._address.model}{path}"
        status, answer = self._ask(method, url, body, seconds)
        if status != 200:
            told = f"{status}: {answer.get('error')}"
            raise RequestError(told + (self._instead(seconds) if status == 404 else ""))
        return answer

    def _instead(self, seconds: float) -> str:
        try:
            status, answer = self._ask("GET", "/status.json", None, seconds)
        except RequestError:  # a server of another kind
            return ""
        names = [model["name"] for model in answer["models"]] if status == 200 else []
        return served_instead(self._address.model, names)

    def _ask(self, method: str, url: str, body: bytes | None, seconds: float) -> tuple[int, Any]:
        address = self._address
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=seconds)
        headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
        try:
            connection.request(method, url, body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise RequestError(str(error)) from None
        self._idle.append(connection)
        return response.status, answer

    def _find_input(self) -> Tensor:
        answer = self._call("GET", "/metadata", None, FIRST_SECONDS)
        definition = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
        name, info = _only_input(definition["inputs"])
        shape = tuple(int(dim["size"]) for dim in info["tensor_shape"]["dim"])[1:]
        return Tensor(name, _NAMES_IN_JSON[info["dtype"]], shape)

    def predict(self, images: np.ndarray, seconds: float) -> np.ndarray:
        body = json.dumps({"instances": images.tolist()}).encode()
        return np.array(self._call("POST", ":predict", body, seconds)["predictions"], np.float32)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


CLIENTS: dict[str, type[GrpcClient] | type[RestClient]] = {"grpc": GrpcClient, "rest": RestClient}
