"""Errors of requests and artifacts, with the codes that gRPC and TensorFlow Serving share."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


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
    """

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def invalid(message: str) -> ServingError:
    return ServingError(Code.INVALID_ARGUMENT, message)


def not_found(message: str) -> ServingError:
    return ServingError(Code.NOT_FOUND, message)


class ArtifactError(ValueError):
    """A folder does not hold a servable model, or one cannot be written there."""
