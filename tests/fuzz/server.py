"""Attackers and good clients of one server, and counts of what they saw."""

import asyncio
import contextlib
import io
import json
import random
import shutil
import time
from collections import Counter

import aiohttp
import grpc
import numpy as np
from convoy.serving import tensorflow_serving_pb2 as messages
from tests.serving.soak import resident_megabytes
from yarl import URL

from . import requests

SECONDS = 60
# What the server may answer to a bad request. All others, such as 500, are its own faults.
REFUSALS = {400, 404, 405, 408, 411, 413, 414, 415, 417, 429, 431, 501}
REMOTE_REFUSALS = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "UNIMPLEMENTED",
    "RESOURCE_EXHAUSTED",
    "PERMISSION_DENIED",
}
KINDS = ("REST", "OIP", "gRPC", "connections")
GOOD_CLIENTS = 2
# Time between damaged versions, and the time in which the server has to load or refuse one.
ROLLOUT_SECONDS = 30
VERSION_SECONDS = 600
# Channels to one address share a connection otherwise.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class ServerFuzz:
    """Sends generated requests to a server, while good clients compare its answers.

    Args:
        server: the process that serves the models `half` and `pictures`.
        seed: seed of all generators.
        goes_on: function that says whether to send more, given the number of bad requests.
        versions: generator of damaged versions, if these are rolled out too.
        rolled: folder of the model that they are rolled out for.
    """

    def __init__(self, server, seed, goes_on, versions=None, rolled=None):
        self.versions, self.rolled = versions, rolled
        self.server, self.seed = server, seed
        self.url = f"http://127.0.0.1:{server.port}"
        self._goes_on = goes_on
        self.answers = {kind: Counter() for kind in KINDS}
        if versions is not None:
            self.answers["versions"] = Counter()
        self.good = Counter()
        self.not_json = 0
        self.server_errors = 0
        self.faults = []
        self.memory = []

    @property
    def bad_requests(self):
        return sum(counter.total() for counter in self.answers.values())

    @property
    def goes_on(self):
        alive = self.server.process.poll() is None
        return alive and self._goes_on(self.bad_requests)

    async def run(self):
        timeout = aiohttp.ClientTimeout(SECONDS)
        address = f"127.0.0.1:{self.server.grpc_port}"
        # Good clients have connections of their own: the server closes those of bad requests.
        async with (
            aiohttp.ClientSession(timeout=timeout) as self.session,
            aiohttp.ClientSession(timeout=timeout) as self.good_session,
            grpc.aio.insecure_channel(address) as self.channel,
            grpc.aio.insecure_channel(address, OWN_CONNECTION) as self.good_channel,
        ):
            attackers = [self._rest, self._open_inference, self._remote, self._connection]
            tasks = [self._attack(one, index) for index, one in enumerate(attackers)]
            tasks += [self._be_good(index) for index in range(GOOD_CLIENTS)]
            await asyncio.gather(*tasks, self._roll_out(), self._watch())
        if (status := self.server.process.poll()) is not None:
            self.faults.append(f"the server ended with status {status}")

    async def _attack(self, send, index):
        rng = random.Random(f"{self.seed}/{index}")
        while self.goes_on:
            await send(rng)

    async def _rest(self, rng):
        await self._http("REST", requests.rest(rng))

    async def _open_inference(self, rng):
        await self._http("OIP", requests.open_inference(rng))

    async def _http(self, kind, request):
        url = URL(self.url + request.path, encoded=True)
        # aiohttp sends a file in parts, and warns of more than a megabyte in one.
        body = request.body and io.BytesIO(request.body)
        try:
            async with self.session.request(
                request.method, url, data=body, headers=request.headers
            ) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            outcome = type(error).__name__
            # The server may close a connection whose request it refused unread.
            if isinstance(error, TimeoutError):
                self.faults.append(f"{kind}: no answer to {request}")
        else:
            outcome = response.status
            is_json = response.content_type == "application/json" or request.method == "HEAD"
            self.not_json += outcome in REFUSALS and not is_json
            self.server_errors += outcome >= 500
            if outcome not in REFUSALS | {200, 204}:
                self.faults.append(f"{kind}: {outcome} {text[:200]!r} to {str(request)[:2000]}")
        self.answers[kind][outcome] += 1

    async def _remote(self, rng):
        method, data = requests.remote(rng)
        call = self.channel.unary_unary(f"/tensorflow.serving.{method}")
        try:
            await call(data, timeout=SECONDS, metadata=requests.metadata(rng), **_compressed(rng))
            outcome = "OK"
        except grpc.aio.AioRpcError as error:
            outcome = error.code().name
            self.server_errors += outcome in ("INTERNAL", "UNKNOWN", "UNAVAILABLE")
            if outcome not in REMOTE_REFUSALS:
                self.faults.append(f"gRPC: {outcome} {error.details()!r} to {method} {data[:500]}")
        self.answers["gRPC"][outcome] += 1

    async def _connection(self, rng):
        data, half_closes = requests.connection(rng, self.server.port)
        outcome = "closed by the client"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            writer.write(data)
            if half_closes:
                writer.write_eof()
                answer = await asyncio.wait_for(reader.read(), SECONDS + 10)
                outcome = answer[9:12].decode(errors="replace") or "closed"
                if outcome.startswith("5"):
                    self.server_errors += 1
                    self.faults.append(f"connection: {answer[:300]} to {data}")
            writer.close()
            await writer.wait_closed()
        except OSError as error:
            outcome = type(error).__name__
        except TimeoutError:
            self.faults.append(f"connection: no end after {data}")
        self.answers["connections"][outcome] += 1

    async def _be_good(self, index):
        rng = random.Random(f"{self.seed}/good/{index}")
        while self.goes_on:
            values = [rng.randrange(100) for _ in range(rng.choice((1, 3)))]
            try:
                found = await (self._predict if index % 2 else self._predict_remotely)(values)
            except (aiohttp.ClientError, TimeoutError, grpc.aio.AioRpcError) as error:
                self.good["lost"] += 1
                self.faults.append(f"a good request was lost: {error!r}"[:300])
                continue
            right = found == [value / 2 + 2 for value in values]
            self.good["right" if right else "wrong"] += 1
            if not right:
                self.faults.append(f"a good request was answered {found!r} instead of {values!r}")
            await asyncio.sleep(0.01)

    async def _predict(self, values):
        body = json.dumps({"instances": values})
        url = f"{self.url}/v1/models/half:predict"
        async with self.good_session.post(url, data=body) as response:
            response.raise_for_status()
            return (await response.json())["predictions"]

    async def _predict_remotely(self, values):
        request = messages.PredictRequest()
        request.model_spec.name = "half"
        tensor = request.inputs["x"]
        tensor.dtype = 1
        tensor.tensor_shape.dim.add().size = len(values)
        tensor.float_val.extend(values)
        call = self.good_channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        answer = await call(request.SerializeToString(), timeout=SECONDS)
        (output,) = messages.PredictResponse.FromString(answer).outputs.values()
        if output.tensor_content:
            return np.frombuffer(output.tensor_content, "<f4").tolist()
        return list(output.float_val)

    async def _roll_out(self):
        """Give the server damaged versions, and wait until each is loaded or refused."""
        number = 1
        while self.goes_on and self.versions is not None:
            number += 1
            folder = self.rolled / str(number)
            copy = self.rolled.parent / f"copied-{number}"
            shutil.copytree(self.versions.original, copy)
            change = self.versions.change(copy)
            copy.rename(folder)
            outcome = await self._state(number)
            self.answers["versions"][outcome] += 1
            if outcome == "without an end":
                self.faults.append(f"version {number} has no end: {change}")
            shutil.rmtree(folder)
            await self._pause()

    async def _state(self, number):
        url = f"{self.url}/v1/models/{self.rolled.name}/versions/{number}"
        until = time.monotonic() + VERSION_SECONDS
        while self.goes_on and time.monotonic() < until:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError):
                async with self.good_session.get(url) as response:
                    (status,) = (await response.json())["model_version_status"]
                if status["state"] in ("AVAILABLE", "END"):
                    return {"AVAILABLE": "loaded", "END": "refused"}[status["state"]]
            await asyncio.sleep(1)
        return "without an end" if self.goes_on else "not waited for"

    async def _pause(self):
        until = time.monotonic() + ROLLOUT_SECONDS
        while self.goes_on and time.monotonic() < until:
            await asyncio.sleep(1)

    async def _watch(self):
        while self.goes_on:
            self.memory.append((time.monotonic(), resident_megabytes(self.server.process.pid)))
            await asyncio.sleep(1)


def _compressed(rng):
    """Return the compression of a call, for some calls."""
    if rng.random() < 0.9:
        return {}
    return {"compression": rng.choice((grpc.Compression.Gzip, grpc.Compression.Deflate))}
