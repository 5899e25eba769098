"""ONNX Runtime or PyTorch behind HTTP, with the batching of Convoy's server; see `serving.py`.

    python serving_peer.py onnxruntime|torch FILE --max-batch-size N
    python serving_peer.py write FILE

This file imports nothing of Convoy, which is not installed in the environment of a peer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

SHAPE = (224, 224, 3)


def torch_model():
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks.peers import torch_models

    torch.manual_seed(0)
    return torch_models.resnet50().eval().to(memory_format=torch.channels_last)


def write(file):
    import torch

    example = torch.zeros(2, 3, 224, 224)
    batch = torch.export.Dim("batch", min=1, max=64)
    torch.onnx.export(
        torch_model(), (example,), file, external_data=False, dynamic_shapes=({0: batch},)
    )


def runner(kind, file):
    """Return a function from bytes of images to outputs."""
    if kind == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name

        def run(images):
            x = np.ascontiguousarray(np.moveaxis(images, -1, 1), np.float32) / np.float32(255)
            return session.run(None, {name: x})[0]

        return run
    import torch

    model = torch_model()

    def run(images):
        with torch.inference_mode():
            x = torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255)
            return model(x.contiguous(memory_format=torch.channels_last)).numpy()

    return run


class Batcher:
    """Answers what came while the model ran by its next call."""

    def __init__(self, run, largest):
        self.run, self.largest = run, largest
        self.queue = asyncio.Queue()
        self.thread = ThreadPoolExecutor(1)
        self.task = asyncio.create_task(self.serve())

    async def submit(self, image):
        answer = asyncio.get_running_loop().create_future()
        await self.queue.put((image, answer))
        return await answer

    async def serve(self):
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.queue.get()]
            while len(batch) < self.largest and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            images = np.stack([image for image, _ in batch])
            outputs = await loop.run_in_executor(self.thread, self.run, images)
            for (_, answer), output in zip(batch, outputs, strict=True):
                answer.set_result(output)


async def serve(run, largest):
    from aiohttp import web

    batcher = Batcher(run, largest)

    async def infer(request):
        body = await request.read()
        start = int(request.headers["Inference-Header-Content-Length"])
        image = np.frombuffer(body, np.uint8, offset=start).reshape(SHAPE)
        return web.Response(body=(await batcher.submit(image)).tobytes())

    for size in {1, largest}:
        run(np.zeros((size, *SHAPE), np.uint8))
    application = web.Application(client_max_size=64 << 20)
    application.router.add_post("/infer", infer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("file")
    parser.add_argument("--max-batch-size", type=int, default=8)
    options = parser.parse_args()
    if options.kind == "write":
        write(options.file)
    else:
        asyncio.run(serve(runner(options.kind, options.file), options.max_batch_size))


if __name__ == "__main__":
    main()
