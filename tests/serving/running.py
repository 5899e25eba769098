"""A real server in a thread."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

from convoy.serving.flags import ServerOptions
from convoy.serving.server import Server


class Running:
    """A server that runs in a thread of its own."""

    def __init__(self, server, loop):
        self.server = server
        self.loop = loop

    @property
    def grpc_address(self):
        return f"127.0.0.1:{self.server.grpc_port}"

    def run(self, coroutine):
        """Wait for something that happens in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(600)

    def ask(self, path, body=None, method=None, headers=()):
        """Return status, headers and body."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.server.port}{path}"
        request = urllib.request.Request(url, body, dict(headers), method=method)
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def json(self, path, body=None, **more):
        status, _, text = self.ask(path, body, **more)
        return status, json.loads(text)


@contextmanager
def running(models, **options):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    settings = {
        "port": 0,
        "grpc_port": 0,
        "poll_seconds": 0.0,
        "try_versions": False,
        "drain_seconds": 0.0,
    } | options

    async def start():
        server = Server(models, ServerOptions(**settings))
        await server.start()
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(600)
        started = Running(server, loop)
        yield started
        started.run(server.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
