"""Errors of requests and artifacts, with the codes that gRPC and TensorFlow Serving share."""

import json
from enum import IntEnum
from pathlib import Path
from typing import Self

from convoy.error_messages import first_line

# Characters of a client's value that an error shows.
MAX_SHOWN = 100


class Code(IntEnum):
    """Status codes that the server uses: the number in the protocols, and the status of HTTP."""

    http_status: int

    def __new__(cls, number: int, http_status: int) -> Self:
        code = int.__new__(cls, number)
        code._value_ = number
        code.http_status = http_status
        return code

    OK = 0, 200
    CANCELLED = 1, 499
    INVALID_ARGUMENT = 3, 400
    DEADLINE_EXCEEDED = 4, 504
    NOT_FOUND = 5, 404
    PERMISSION_DENIED = 7, 403
    RESOURCE_EXHAUSTED = 8, 429
    FAILED_PRECONDITION = 9, 400
    UNIMPLEMENTED = 12, 501
    INTERNAL = 13, 500
    UNAVAILABLE = 14, 503
    UNAUTHENTICATED = 16, 401


class ServingError(Exception):
    """A request that cannot be answered.

    Args:
        code: the status code.
        message: the text for the client.
        http_status: the status of HTTP, if it is not the code's.
        retry_seconds: time after which the client may try again, if that can help.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        http_status: int | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = code.http_status if http_status is None else http_status
        self.retry_seconds = retry_seconds


def invalid(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARGUMENT, message)


def too_large(message: str) -> ServingError:
    """Return the error of a request that exceeds the maximum size."""
    return ServingError(Code.INVALID_ARGUMENT, message, http_status=413)


def exhausted(message: str, retry_seconds: float) -> ServingError:
    """Return the error of a request for which there is no capacity at the moment."""
    return ServingError(Code.RESOURCE_EXHAUSTED, message, retry_seconds=retry_seconds)


def not_found(message: str) -> ServingError:
    return ServingError(Code.NOT_FOUND, message)


def deadline_exceeded(seconds: float) -> ServingError:
    """Return the error of a request that did not end within the maximum time."""
    return ServingError(
        Code.DEADLINE_EXCEEDED,
        f"The request took longer than {seconds:g} seconds. Send fewer samples, or start the "
        "server with a larger --request-seconds.",
    )


def server_stops() -> ServingError:
    """Return the error of a call that the server does not answer because it stops."""
    return ServingError(Code.UNAVAILABLE, "The server stops. Send the request to another server.")


class ArtifactError(ValueError):
    """A folder does not hold a servable model, or one cannot be written there."""


def shorten(text: str) -> str:
    """Return the beginning of a client's text, for an error."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def show(value: object) -> str:
    """Return the beginning of a client's value, for an error: as JSON, or as a quoted string."""
    if isinstance(value, str):
        return repr(shorten(value))
    text = ""
    for part in json.JSONEncoder(default=str).iterencode(value):
        text += part
        if len(text) > MAX_SHOWN:
            break
    return shorten(text)


def describe_compile_error(path: Path, error: BaseException) -> str:
    """Return the message of an error that the compiler raised for a version."""
    return f"{path} could not be compiled: {describe_error(error)}"


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of an unexpected error, for the log."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"
