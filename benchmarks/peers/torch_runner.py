"""Runner of PyTorch, channels last: eager, compiled, and its convolutions alone.

    python -m benchmarks.peers.torch_runner eager|compiled|convolutions

`convolutions` measures the limit of a row: the forward pass and both gradients of every convolution
of the network, and nothing else.

In bfloat16, training uses autocast. Inference and the limit have weights in bfloat16, which is
faster than to cast them in every step.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from benchmarks.peers import protocol, torch_models
from benchmarks.peers.workloads import Workload
from torch import Tensor, nn
from torch.nn import functional


class TorchRunner:
    """Trains in PyTorch's usual loop, or runs inference batch by batch."""

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def prepare(self, workload: Workload, precision: str) -> protocol.Ready:
        torch.manual_seed(0)
        self.workload = workload
        self.dtype = getattr(torch, precision)
        x, y = workload.data()
        # Channels first in name and last in memory: what `channels_last` means, without a copy.
        self.x = torch.from_numpy(x).movedim(-1, 1)
        self.y = torch.from_numpy(y)
        if not workload.regression:
            self.y = self.y.long()
        self.model = getattr(torch_models, workload.network)()
        self.model.to(memory_format=layout(self.x))
        parameters = sum(weight.numel() for weight in self.model.parameters())
        protocol.check_parameters(workload, parameters)
        self.step = self.make_step()
        self.run(workload.loop_steps)
        return protocol.Ready(parameters, protocol.versions())

    def make_step(self) -> Any:
        if self.variant == "convolutions":
            example = self.x[: self.workload.batch].to(self.dtype)
            return convolutions_step(self.model.to(self.dtype), example)
        if self.workload.kind == "inference":
            return self.inference_step()
        return self.training_step()

    def training_step(self) -> Any:
        work = self.workload
        loss_of = functional.mse_loss if work.regression else functional.cross_entropy
        model = torch.compile(self.model) if self.variant == "compiled" else self.model
        optimizer = torch.optim.SGD(
            model.parameters(), work.learning_rate, momentum=work.momentum, fused=True
        )

        def step(x: Tensor, y: Tensor) -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
                loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()

        return step

    def inference_step(self) -> Any:
        model, dtype = self.model.eval().to(self.dtype), self.dtype
        if self.variant == "compiled":
            from torch._inductor import config

            config.freezing = True
            model = torch.compile(model)
        else:
            from torch.fx.experimental.optimization import fuse

            model = fuse(model).to(memory_format=torch.channels_last)

        @torch.no_grad()
        def step(x: Tensor, y: Tensor) -> None:
            del y
            model(x.to(dtype)).float().numpy()

        return step

    def run(self, steps: int) -> None:
        batch = self.workload.batch
        for index in range(steps):
            first = index % self.workload.steps * batch
            self.step(self.x[first : first + batch], self.y[first : first + batch])


def layout(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def convolutions_step(model: nn.Module, example: Tensor) -> Any:
    """Return a step of a network's convolutions, each on its own input of the right shape."""
    found: list[tuple[nn.Module, tuple[int, ...]]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        del output
        found.append((module, tuple(inputs[0].shape)))

    convolutions = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Conv3d))]
    hooks = [module.register_forward_hook(note) for module in convolutions]
    with torch.no_grad():
        model(example)
    for hook in hooks:
        hook.remove()
    work = []
    for index, (module, shape) in enumerate(found):
        x = torch.randn(shape, dtype=example.dtype).to(memory_format=layout(example))
        # No gradient of the images is needed.
        x.requires_grad_(index > 0)
        with torch.no_grad():
            work.append((module, x, torch.randn_like(module(x))))

    def step(x: Tensor, y: Tensor) -> None:
        del x, y
        for module, inputs, gradient in work:
            wanted = [inputs] if inputs.requires_grad else []
            torch.autograd.grad(module(inputs), [*wanted, *module.parameters()], gradient)

    return step


if __name__ == "__main__":
    protocol.serve(TorchRunner, sys.argv[1])
