"""The end of a listening socket without a reset of the connections that are just being made.

A client is connected as soon as the kernel has answered it, before the server accepts. If the
server closes the socket in between, the client's request is lost. So the kernel is first told to
ignore attempts to connect; the connections of earlier ones are accepted; then the socket is closed.
A client whose attempt is ignored tries again after a second, and is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys

SO_ATTACH_FILTER = 26
# Instructions of a packet filter: operation, jump if true, jump if false, operand. They drop the
# first segment of a connection, which has the flag SYN in byte 13 of its header.
_FILTER = (
    (0x30, 0, 0, 13),  # load the byte
    (0x45, 0, 1, 0x02),  # is the flag set?
    (0x06, 0, 0, 0),  # then drop the segment
    (0x06, 0, 0, 0xFFFF),  # otherwise accept it
)


def refuse_new_connections(listener: socket.socket) -> None:
    """Let the kernel ignore further attempts to connect, where the system can."""
    if not sys.platform.startswith("linux"):
        return
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _FILTER)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(_FILTER), ctypes.addressof(buffer))
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
