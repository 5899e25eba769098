"""Responses that clients do not read: their time, and their memory."""

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager

import pytest
from aiohttp import web
from convoy.serving.response_sender import COPIES, ResponseSender

# More than the buffers of the kernel on both sides take.
BODY = bytes(16 << 20)
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


@asynccontextmanager
async def answering(sender):
    """The port of a server that answers each request with a long body."""

    @web.middleware
    async def send(request, handler):
        response = await handler(request)
        await sender.send(request, response)
        return response

    async def answer(_):
        return web.Response(body=BODY)

    application = web.Application(middlewares=[send])
    application.router.add_get("/", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


def request(port):
    """A connection that has sent a request and reads nothing."""
    connection = socket.create_connection(("127.0.0.1", port), 60)
    connection.sendall(REQUEST)
    return connection


def read(connection, pause=None):
    """Return how many bytes of the response arrive before the connection ends."""
    total = 0
    try:
        while total < len(BODY) and (part := connection.recv(1 << 20)):
            total += len(part)
            if pause:
                pause()
    except ConnectionResetError:
        pass
    return total


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_a_client_that_reads_nothing_loses_its_connection():
    sender = ResponseSender(idle_seconds=0.2, max_unsent_bytes=1 << 30)

    async def run():
        async with answering(sender) as port:
            with request(port) as silent:
                await until(lambda: sender.unsent_bytes == COPIES * len(BODY))
                await until(lambda: sender.unsent_bytes == 0)
                assert await asyncio.to_thread(read, silent) < len(BODY)

    asyncio.run(run())


def test_a_client_that_reads_slowly_gets_everything():
    sender = ResponseSender(idle_seconds=0.2, max_unsent_bytes=1 << 30)
    waited = []

    def pause():
        if len(waited) < 8:
            waited.append(asyncio.run(asyncio.sleep(0.1)))

    async def run():
        async with answering(sender) as port:
            with request(port) as slow:
                assert await asyncio.to_thread(read, slow, pause) >= len(BODY)
                await until(lambda: sender.unsent_bytes == 0)

    asyncio.run(run())
    assert len(waited) == 8


def test_responses_that_nobody_reads_take_bounded_memory():
    budget = 3 * COPIES * len(BODY)
    sender = ResponseSender(idle_seconds=600, max_unsent_bytes=budget)
    held = []

    async def run():
        async with answering(sender) as port:
            with ExitStack() as stack:
                silent = [stack.enter_context(request(port)) for _ in range(10)]
                await until(lambda: sender.unsent_bytes == budget)
                # A client that reads is served meanwhile.
                for _ in range(5):
                    with request(port) as good:
                        assert await asyncio.to_thread(read, good) >= len(BODY)
                    held.append(sender.unsent_bytes)
                arrived = [await asyncio.to_thread(read, connection) for connection in silent]
                assert sum(size < len(BODY) for size in arrived) >= 7

    asyncio.run(run())
    assert max(held) <= budget
