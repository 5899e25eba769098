"""Bodies of requests, charged as they arrive."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from convoy.serving.errors import ServingError
from convoy.serving.request_body import read_body


def send(body, max_bytes=100, **headers):
    """Send a body to a server that reads it; return what it read, or the error."""

    async def answer(request):
        try:
            return web.Response(body=await read_body(request, max_bytes))
        except ServingError as error:
            return web.Response(status=error.http_status, text=error.message)

    async def run():
        application = web.Application()
        application.router.add_post("/", answer)
        async with TestClient(TestServer(application)) as client:
            response = await client.post("/", data=body, headers=headers)
            return response.status, await response.read()

    return asyncio.run(run())


async def in_parts(*parts):
    for part in parts:
        yield part
        await asyncio.sleep(0)


def test_a_body_in_one_part_or_in_several():
    assert send(b"0123") == (200, b"0123")
    assert send(b"") == (200, b"")
    assert send(in_parts(b"01", b"23")) == (200, b"0123")


@pytest.mark.parametrize("body", [b"x" * 101, in_parts(b"x" * 60, b"x" * 60)])
def test_a_body_that_is_too_large_is_refused_with_or_without_its_length(body):
    status, text = send(body)
    assert status == 413
    assert b"more than 100 bytes" in text


def test_an_unknown_encoding_is_refused():
    status, text = send(b"0123", **{"Content-Encoding": "compress"})
    assert status == 415
    assert b"identity, gzip, deflate" in text
