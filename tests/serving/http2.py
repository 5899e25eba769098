"""A gRPC client that sends frames of HTTP/2 itself, so that it can stop within a message."""

import contextlib
import select
import socket
import struct

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_BYTES = 16384
FIRST_WINDOW = 65535
PREDICT = "/tensorflow.serving.PredictionService/Predict"


class RawConnection:
    """One connection with any number of calls.

    Attributes:
        closed: the streams that the server has ended.
    """

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.windows = {0: FIRST_WINDOW}
        self.first_window = FIRST_WINDOW
        self.closed = set()
        self._received = b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b""))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def call(self, stream, **headers):
        """Begin a call; streams have odd numbers that increase."""
        fields = {":method": "POST", ":scheme": "http", ":path": PREDICT, ":authority": "x"}
        fields |= {"te": "trailers", "content-type": "application/grpc"} | headers
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self.windows[stream] = self.first_window
        with contextlib.suppress(OSError):
            self.socket.sendall(_frame(HEADERS, END_HEADERS, stream, block))

    def end(self, stream):
        """End a call from the client's side."""
        self.socket.sendall(_frame(DATA, END_STREAM, stream, b""))

    def send(self, contents, seconds):
        """Send bytes on streams, as far as the server accepts them, until it accepts no more.

        Args:
            contents: bytes by stream.
            seconds: time without an answer after which the server accepts no more.

        Returns:
            The number of bytes that were sent.
        """
        views = {stream: memoryview(content) for stream, content in contents.items()}
        total = 0
        while True:
            sent = sum(self._send_part(stream, views) for stream in views)
            total += sent
            if not any(view for stream, view in views.items() if stream not in self.closed):
                return total
            if not self.receive(0 if sent else seconds) and not sent:
                return total

    def _send_part(self, stream, views):
        room = min(self.windows[0], self.windows[stream], FRAME_BYTES, len(views[stream]))
        if room <= 0 or stream in self.closed:
            return 0
        try:
            self.socket.sendall(_frame(DATA, 0, stream, bytes(views[stream][:room])))
        except OSError:
            self.closed.add(stream)
            return 0
        views[stream] = views[stream][room:]
        self.windows[0] -= room
        self.windows[stream] -= room
        return room

    def receive(self, seconds):
        """Handle what the server has sent; return whether it was anything."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return False
        try:
            self._received += self.socket.recv(1 << 16)
        except OSError:
            return False
        while len(self._received) >= 9:
            length = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + length:
                break
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            self._handle(kind, flags, stream, self._received[9 : 9 + length])
            self._received = self._received[9 + length :]
        return True

    def _handle(self, kind, flags, stream, payload):
        if kind == WINDOW_UPDATE and stream in self.windows:
            self.windows[stream] += int.from_bytes(payload, "big")
        elif kind == RESET or (kind == HEADERS and flags & END_STREAM):
            self.closed.add(stream)
        elif kind == PING and not flags & ACK:
            self.socket.sendall(_frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:  # the first window of a stream
                    for known in self.windows.keys() - {0}:
                        self.windows[known] += value - self.first_window
                    self.first_window = value
            self.socket.sendall(_frame(SETTINGS, ACK, 0, b""))


def _frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text):
    """Return a text as HPACK sends it without compression."""
    data = text.encode()
    length = bytes([len(data)]) if len(data) < 127 else b"\x7f" + bytes([len(data) - 127])
    return length + data


def message_start(size, compressed=False):
    """Return the bytes before a gRPC message of a size."""
    return struct.pack(">BI", compressed, size)
