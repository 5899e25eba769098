"""Runner of a network's convolutions and matrix products alone, by PyTorch.

    python -m benchmarks.peers.limit_runner

It notes every convolution and matrix product of the Keras network on its torch backend. A step is
each of them by itself, on its own inputs of the right shapes, with the gradients if the workload is
training, and nothing else. Images are channels last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import torch
from benchmarks.peers import keras_models, protocol
from benchmarks.peers.workloads import Workload
from torch import Tensor
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = {
    f"conv{transposed}{rank}d" for transposed in ("", "_transpose") for rank in (1, 2, 3)
}
PRODUCTS = {"matmul", "linear", "bmm", "addmm", "einsum", "scaled_dot_product_attention"}
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}

Call = tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]
"""A function with its arguments."""


class Notes(TorchFunctionMode):
    """Notes the calls of convolutions and matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in CONVOLUTIONS | PRODUCTS:
            self.calls.append((func, args, kwargs))
        return func(*args, **kwargs)


class LimitRunner:
    """Runs a network's convolutions and matrix products."""

    def __init__(self, variant: str) -> None:
        del variant

    def prepare(self, workload: Workload, precision: str) -> protocol.Ready:
        dtype = getattr(torch, precision)
        model = keras_models.make(workload)
        x, _ = workload.data()
        self.trains = workload.kind == "training"
        with Notes() as notes, torch.no_grad():
            model(x[: workload.batch], training=False)
        self.calls = [self.fresh(call, dtype) for call in notes.calls]
        if self.trains:
            # No gradient of the images is needed.
            next(_tensors(self.calls[0])).requires_grad_(False)
        self.gradients = [self.gradient(call) for call in self.calls]
        self.run(workload.loop_steps)
        parameters = sum(weight.value.numel() for weight in model.trainable_weights)
        return protocol.Ready(parameters, protocol.versions())

    def fresh(self, call: Call, dtype: torch.dtype) -> Call:
        """Return a call with random arrays of the same shapes, images with channels last."""
        function, args, kwargs = call
        is_convolution = function.__name__ in CONVOLUTIONS

        def replace(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(map(replace, value))
            if not isinstance(value, Tensor):
                return value
            array = torch.randn(value.shape, dtype=dtype)
            if is_convolution and value.dim() in LAYOUTS:
                array = array.to(memory_format=LAYOUTS[value.dim()])
            return array.requires_grad_(self.trains)

        return function, replace(args), {name: replace(v) for name, v in kwargs.items()}

    def gradient(self, call: Call) -> Tensor:
        """Return a gradient of a call's result, in its memory layout."""
        function, args, kwargs = call
        with torch.no_grad():
            return torch.randn_like(function(*args, **kwargs))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for call, gradient in zip(self.calls, self.gradients, strict=True):
                function, args, kwargs = call
                with torch.set_grad_enabled(self.trains):
                    result = function(*args, **kwargs)
                wanted = [array for array in _tensors(call) if array.requires_grad]
                if wanted:
                    torch.autograd.grad(result, wanted, gradient)


def _tensors(call: Call) -> Any:
    """Yield the arrays among the arguments of a call."""
    waiting = [*call[1], *call[2].values()]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            waiting = [*value, *waiting]


if __name__ == "__main__":
    protocol.serve(LimitRunner, sys.argv[-1])
