"""Texts of errors of the system and of other libraries, for messages of one line."""

import errno
import os
import re
import socket
import ssl
from collections.abc import Sequence

# Names in an error message; a longer list is cut.
MAX_NAMES = 8

_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if it has none.

    Keras colours its messages, and may put a line about the object or layer in front of the reason.
    That line is left out.
    """
    *_, reason = _COLOURS.sub("", str(error)).rpartition("Exception encountered: ")
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Exception encountered"):
        lines.pop(0)
    return lines[0] if lines else type(error).__name__


def system_reason(error: BaseException) -> str:
    """Return the reason of an error of the system, without the file: `Permission denied`.

    An error without a number has its first line as the reason.
    """
    number = getattr(error, "errno", None) or 0
    # The text of asyncio's errors repeats the address. Errors of name resolution and TLS have
    # numbers of their own.
    if number in errno.errorcode and not isinstance(error, (socket.gaierror, ssl.SSLError)):
        return os.strerror(number)
    return getattr(error, "strerror", None) or first_line(error)


def first_names(names: Sequence[str]) -> str:
    """Return some of the names in a list of any length."""
    return ", ".join(names[:MAX_NAMES]) + ", ..." * (len(names) > MAX_NAMES)
