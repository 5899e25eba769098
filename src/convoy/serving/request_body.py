"""Reading of a request's body, charged to its reservation as the bytes arrive."""

from aiohttp import web
from convoy.serving import admission
from convoy.serving.errors import too_large


async def read_body(request: web.Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    The bytes are charged as they arrive: a client that announces a large body and does not send it
    takes no room from others.

    Args:
        request: the request.
        max_bytes: maximum size of the body.

    Raises:
        ServingError: if it is too large, or there is no room for it.
    """
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
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise too_large(f"A request has at most {max_bytes} bytes.")
