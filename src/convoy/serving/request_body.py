"""Reading of a request's body, charged to its reservation as the bytes arrive."""

from aiohttp import web
from convoy.serving import admission
from convoy.serving.errors import Code, ServingError, too_large

ENCODINGS = ("identity", "gzip", "deflate")
UNSUPPORTED_ENCODING = (
    f"The Content-Encoding of the body is not one of {', '.join(ENCODINGS)}. Send it in one of "
    "these, or without the header."
)


async def read_body(request: web.Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    The bytes are charged as they arrive, so a client that announces a large body without sending it
    uses no memory. The request counts towards the limit of requests only after it has arrived
    completely.

    Args:
        request: the request.
        max_bytes: maximum size of the body.

    Raises:
        ServingError: if it is too large, there is no memory for it, or its encoding is not known.
    """
    if request.headers.get("Content-Encoding", "identity").lower() not in ENCODINGS:
        raise ServingError(Code.INVALID_ARGUMENT, UNSUPPORTED_ENCODING, http_status=415)
    reservation = admission.current()
    chunks, size = list[bytes](), request.content_length or 0
    _check_size(size, max_bytes)
    size = 0
    while chunk := await request.content.readany():
        size += len(chunk)
        _check_size(size, max_bytes)
        if reservation is not None:
            reservation.reserve(len(chunk))
        chunks.append(chunk)
    if reservation is not None:
        reservation.start()
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise too_large(f"The request has more than {max_bytes} bytes. Send fewer samples.")
