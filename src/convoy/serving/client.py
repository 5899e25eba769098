"""Minimal gRPC and REST clients of a server, for load generation."""

import contextlib
import difflib
import http.client
import json
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import numpy as np
from convoy.error_messages import first_names, system_reason
from convoy.serving import tensorflow_serving_pb2 as messages
from convoy.serving.errors import describe_error
from convoy.serving.signature import NUMPY_NAMES, TensorSpec
from convoy.serving.tensor_protos import to_array, to_proto
from convoy.serving.tensorflow_methods import (
    DEFAULT_SIGNATURE,
    MODELS_KEY,
    SERVICE_PACKAGE,
)
from google.protobuf.message import Message

# Environment variable with the token of a server.
TOKEN_VARIABLE = "CONVOY_SERVING_TOKEN"
# Timeout of the first request, during which the server may still load the model.
FIRST_SECONDS = 1000.0
# Maximum size of a response.
MAX_RESPONSE_BYTES = 1 << 30
DEFAULT_PORTS = {"grpc": 8500, "rest": 8501}
# The start of an HTTP/2 connection, as of gRPC: the preface and an empty SETTINGS frame.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# The type of the frame that the answer begins with, after three bytes for its length.
_SETTINGS = b"\4"
# Timeout of the answer.
_PREFACE_SECONDS = 5.0

Info = TypeVar("Info")
Response = TypeVar("Response", bound=Message)


class RequestError(Exception):
    """A request failed, or the server cannot be reached."""


class UnavailableError(RequestError):
    """The server cannot answer at the moment, for example because it loads the model."""


@dataclass(frozen=True)
class Address:
    """The address of a model.

    Attributes:
        host: the server's host.
        port: the port of the protocol.
        model: the model's name.
        token: the bearer token, if the server requires one.
    """

    host: str
    port: int
    model: str
    token: str | None = None


class Client(ABC):
    """A client of one model.

    Attributes:
        input: the model's input.

    Raises:
        RequestError: if the server cannot be reached, or does not have the model.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        try:
            with _understood():
                self.input = self._find_input()
        except RequestError:
            self.close()
            raise

    @abstractmethod
    def _find_input(self) -> TensorSpec: ...

    def predict(self, images: np.ndarray, seconds: float) -> np.ndarray:
        """Return the model's only output.

        Raises:
            RequestError: if the server returns an error, or does not answer within `seconds`.
        """
        with _understood():
            return self._predict(images, seconds)

    @abstractmethod
    def _predict(self, images: np.ndarray, seconds: float) -> np.ndarray: ...

    @abstractmethod
    def close(self) -> None: ...


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """Report a response that does not follow TensorFlow Serving's API as a one-line error."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:  # Any type of value can be in any place of a response.
        raise RequestError(
            f"The response is not one of TensorFlow Serving's API: {describe_error(error)}. Check "
            "--host and --port."
        ) from None


def await_listener(address: Address, seconds: float, notify: Callable[[str], None]) -> None:
    """Wait until a server listens at an address.

    Args:
        address: the address.
        seconds: maximum time to wait.
        notify: function that is called with a message if there is no server yet.

    Raises:
        RequestError: if no server listens in time.
    """
    place = f"{address.host}:{address.port}"

    def connect() -> None:
        try:
            socket.create_connection((address.host, address.port), timeout=seconds or None).close()
        except OSError as error:
            raise UnavailableError(
                f"{place} cannot be reached: {system_reason(error)}. Start convoy serve, or pass "
                "--host and --port."
            ) from None

    _repeat_until_available(
        connect, seconds, notify, lambda _: f"waiting for a server at {place} for"
    )


def _check_grpc(address: Address) -> None:
    """Check that a server speaks HTTP/2; gRPC itself would repeat the connection without a word.

    Raises:
        RequestError: if it speaks another protocol.
        UnavailableError: if it does not answer.
    """
    place = f"{address.host}:{address.port}"
    try:
        with socket.create_connection((address.host, address.port), _PREFACE_SECONDS) as connection:
            connection.sendall(_HTTP2_PREFACE)
            with connection.makefile("rb") as stream:
                answer = stream.read(4)
    except OSError:
        answer = b""
    if answer and answer[3:] != _SETTINGS:
        raise RequestError(
            f"{place} does not speak gRPC; its default port is {DEFAULT_PORTS['grpc']}. For REST, "
            "pass --protocol rest."
        )
    if not answer:
        raise UnavailableError(f"{place} does not answer.")


def available_models(model: str, names: Sequence[str]) -> str:
    """Return the end of an error message about an unknown model: the names of the others."""
    if model in names or not names:
        return ""
    near = difflib.get_close_matches(model, names, 1)
    question = f"; did you mean {near[0]}?" if near else "."
    return f". The server has {first_names(names)}{question}"


def _only_input(inputs: Mapping[str, Info]) -> tuple[str, Info]:
    if len(inputs) > 1:
        raise RequestError(
            f"The model takes {' and '.join(sorted(inputs))}; images can only be sent to models "
            "with one input. Send a request with curl instead."
        )
    return next(iter(inputs.items()))


class GrpcClient(Client):
    """A client of `PredictionService`."""

    def __init__(self, address: Address) -> None:
        limits = [
            ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
            ("grpc.max_send_message_length", -1),
        ]
        self._channel = grpc.insecure_channel(f"{address.host}:{address.port}", limits)
        super().__init__(address)

    def _call(
        self, method: str, request: Message, response_type: type[Response], seconds: float
    ) -> Response:
        call = self._channel.unary_unary(
            f"/{SERVICE_PACKAGE}.PredictionService/{method}",
            request_serializer=lambda value: value.SerializeToString(),
            response_deserializer=response_type.FromString,
        )
        token = self._address.token
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        try:
            return call(request, timeout=seconds, metadata=metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            names = dict(error.trailing_metadata() or ()).get(MODELS_KEY, "[]")
            others = available_models(self._address.model, json.loads(names))
            is_temporary = error.code() is grpc.StatusCode.UNAVAILABLE
            kind = UnavailableError if is_temporary else RequestError
            raise kind(f"{error.code().name}: {error.details()}{others}") from None

    def _find_input(self) -> TensorSpec:
        request = messages.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = self._address.model
        response = self._call(
            "GetModelMetadata", request, messages.GetModelMetadataResponse, FIRST_SECONDS
        )
        signatures = messages.SignatureDefMap.FromString(response.metadata["signature_def"].value)
        name, info = _only_input(signatures.signature_def[DEFAULT_SIGNATURE].inputs)
        shape = tuple(dim.size for dim in info.tensor_shape.dim)[1:]
        return TensorSpec(name, NUMPY_NAMES[info.dtype], shape)

    def _predict(self, images: np.ndarray, seconds: float) -> np.ndarray:
        request = messages.PredictRequest()
        request.model_spec.name = self._address.model
        request.inputs[self.input.name].CopyFrom(to_proto(images, packed=True))
        response = self._call("Predict", request, messages.PredictResponse, seconds)
        ((name, output),) = response.outputs.items()
        shape = tuple(dim.size for dim in output.tensor_shape.dim)[1:]
        return to_array(output, TensorSpec(name, NUMPY_NAMES[output.dtype], shape), len(images))

    def close(self) -> None:
        self._channel.close()


class RestClient(Client):
    """A client of the REST API, in the row format."""

    def __init__(self, address: Address) -> None:
        self._idle: list[http.client.HTTPConnection] = []
        super().__init__(address)

    def _call(self, method: str, path: str, body: bytes | None, seconds: float) -> Any:
        url = f"/v1/models/{self._address.model}{path}"
        status, response = self._request(method, url, body, seconds)
        if status != 200:
            others = self._other_models(seconds) if status == 404 else ""
            kind = UnavailableError if status == 503 else RequestError
            raise kind(f"{status}: {response.get('error')}{others}")
        return response

    def _other_models(self, seconds: float) -> str:
        try:
            status, response = self._request("GET", "/status.json", None, seconds)
        except RequestError:  # The server is not Convoy's.
            return ""
        names = [model["name"] for model in response["models"]] if status == 200 else []
        return available_models(self._address.model, names)

    def _request(
        self, method: str, url: str, body: bytes | None, seconds: float
    ) -> tuple[int, Any]:
        address = self._address
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=seconds)
        headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
        try:
            connection.request(method, url, body, headers)
            response = connection.getresponse()
            text = response.read(MAX_RESPONSE_BYTES + 1)
            if len(text) > MAX_RESPONSE_BYTES:
                raise ValueError(f"The response has more than {MAX_RESPONSE_BYTES} bytes.")
            content = json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            place = f"{address.host}:{address.port}"
            raise RequestError(
                f"{place} gave no valid response: {describe_error(error).rstrip('.')}. Check "
                "--host and --port."
            ) from None
        self._idle.append(connection)
        return response.status, content

    def _find_input(self) -> TensorSpec:
        response = self._call("GET", "/metadata", None, FIRST_SECONDS)
        definition = response["metadata"]["signature_def"]["signature_def"][DEFAULT_SIGNATURE]
        name, info = _only_input(definition["inputs"])
        shape = tuple(int(dim["size"]) for dim in info["tensor_shape"]["dim"])[1:]
        return TensorSpec(name, NUMPY_NAMES[messages.DataType.Value(info["dtype"])], shape)

    def _predict(self, images: np.ndarray, seconds: float) -> np.ndarray:
        body = json.dumps({"instances": images.tolist()}).encode()
        return np.array(self._call("POST", ":predict", body, seconds)["predictions"], np.float32)

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


CLIENTS: dict[str, type[Client]] = {"grpc": GrpcClient, "rest": RestClient}


def await_model(
    protocol: str, address: Address, seconds: float, notify: Callable[[str], None]
) -> None:
    """Wait until a server, which listens already, has loaded a model.

    Args:
        protocol: a key of `CLIENTS`.
        address: the address.
        seconds: maximum time to wait.
        notify: function that is called with the server's message if it is not available yet.

    Raises:
        RequestError: if the server does not have the model, or has not loaded it in time.
    """

    def load() -> None:
        if protocol == "grpc":
            _check_grpc(address)
        CLIENTS[protocol](address).close()

    _repeat_until_available(load, seconds, notify, lambda error: f"{error} Waiting for")


def _repeat_until_available(
    attempt: Callable[[], None],
    seconds: float,
    notify: Callable[[str], None],
    describe: Callable[[UnavailableError], str],
) -> None:
    """Call a function until it no longer raises `UnavailableError`, for at most some seconds.

    Args:
        attempt: the function.
        seconds: maximum time to wait.
        notify: function that is called with a message after the first error.
        describe: function from this error to the beginning of the message.
    """
    end, is_notified = time.monotonic() + seconds, False
    while True:
        try:
            attempt()
            return
        except UnavailableError as error:
            if time.monotonic() >= end:
                raise
            if not is_notified:
                notify(f"{describe(error)} at most {seconds:g} s (Ctrl-C stops this)")
                is_notified = True
        time.sleep(0.2)
