"""Clients that attack a server, in a process of their own.

    python -m tests.serving.attackers PORT GRPC_PORT BEGAN SECONDS

They pause for some seconds, then attack for as long, beginning at the time `BEGAN` of the system's
monotonic clock, and print the number of attacks of each kind. The process has the lowest priority:
on a network, attackers do not take CPU time from the server.
"""

import asyncio
import base64
import contextlib
import io
import json
import os
import random
import sys
import time
from collections import Counter

import grpc
from convoy.serving import tensorflow_serving_pb2 as messages
from PIL import Image
from tests.serving.bad_files import png

ATTACKERS = 4
PHASE_SECONDS = 10.0
NAME = "scaled"
PREDICT = f"/v1/models/{NAME}:predict"


def is_attacked(began):
    """Return whether attackers that began at a time are attacking now."""
    return int((time.monotonic() - began) / PHASE_SECONDS) % 2 == 1


class Attackers:
    def __init__(self, port, grpc_port, began, seconds):
        self.port, self.grpc_port, self.began = port, grpc_port, began
        self.until = began + seconds
        self.lists = b'{"instances": [' + b"[]," * 1_000_000 + b"[]]}"
        self.samples = many_samples()
        self.images = [
            json.dumps({"instances": [{"b64": base64.b64encode(file).decode()}]}).encode()
            for file in image_bombs()
        ]
        self.counts = Counter()

    async def run(self):
        await asyncio.gather(*(self.misbehave(seed) for seed in range(ATTACKERS)))

    async def misbehave(self, seed):
        """Attack in some phases, each time in another way."""
        rng = random.Random(seed)
        kinds = [getattr(self, name) for name in dir(self) if name.startswith("attack_")]
        while time.monotonic() < self.until:
            if not is_attacked(self.began):
                await asyncio.sleep(0.05)
                continue
            attack = rng.choice(kinds)
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(20):
                    await attack(rng)
            self.counts[attack.__name__.removeprefix("attack_")] += 1

    async def send(self, path, body, *headers, length=None, then=None):
        """Send a request, and return the first bytes of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            size = len(body) if length is None else length
            lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {size}", *headers]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
            if then is not None:
                await then(writer)
            return await reader.read(1000)
        finally:
            writer.close()

    async def attack_slow(self, rng):
        async def wait(writer):
            await asyncio.sleep(3 * rng.random())
            writer.transport.abort()

        await self.send(PREDICT, b"{", length=100, then=wait)

    async def attack_half_closed(self, rng):
        async def close(writer):
            writer.write_eof()

        await self.send(PREDICT, b"{", length=100, then=close)

    async def attack_oversized(self, rng):
        await self.send(PREDICT, b" " * 65536, length=1 << 30)

    async def attack_nonsense(self, rng):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(rng.randbytes(500) + b"\r\n\r\n")
        await reader.read(100)
        writer.close()

    async def attack_silent(self, rng):
        opened = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(20)]
        await asyncio.sleep(rng.random())
        for _, writer in opened:
            writer.close()

    async def attack_lists(self, rng):
        await self.send(PREDICT, self.lists)

    async def attack_samples(self, rng):
        header, data = self.samples
        name = f"Inference-Header-Content-Length: {len(header)}"
        await self.send(f"/v2/models/{NAME}/infer", header + data, name)

    async def attack_claimed_shape(self, rng):
        request = messages.PredictRequest()
        request.model_spec.name = NAME
        tensor = request.inputs["x"]
        tensor.dtype = 1
        for size in (1 << 26, 16):
            tensor.tensor_shape.dim.add(size=size)
        tensor.float_val.append(1.0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            with contextlib.suppress(grpc.RpcError):
                await call(request.SerializeToString(), timeout=10)

    async def attack_images(self, rng):
        for body in self.images:
            await self.send("/v1/models/pictures:predict", body)


def image_bombs():
    """Return small files with many pixels: one that is refused, one that is not."""
    file = io.BytesIO()
    Image.new("RGB", (3000, 3000)).save(file, "PNG")
    return png(1, 50_000_000, 10), file.getvalue()


def many_samples():
    """Return the header and the data of a request with far too many samples."""
    data = bytes(16 * 4 * 200_000)
    tensor = {"name": "x", "shape": [200_000, 16], "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": len(data)}
    return json.dumps({"inputs": [tensor]}).encode(), data


def main():
    os.nice(19)
    port, grpc_port, began, seconds = sys.argv[1:]
    attackers = Attackers(int(port), int(grpc_port), float(began), float(seconds))
    asyncio.run(attackers.run())
    print(json.dumps(dict(sorted(attackers.counts.items()))))


if __name__ == "__main__":
    main()
