"""The recipe `cifar10_resnet8` in PyTorch: same network, batches, schedule, decay, augmentation.

Started by `cifar10.py` in torch's environment, with a file of arrays, a seed, a number of epochs
and a precision: `float32`, or `mixed_bfloat16` for PyTorch's autocast. Prints the validation
accuracy and the training time in seconds.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch
from benchmarks.peers.torch_models import resnet8
from torch import nn
from torch.nn import functional

BATCH, RATE, WARM_UP, MOMENTUM, DECAY, PADDING = 64, 1.5e-3 * 64, 3, 0.9, 5e-4, 4


def make_network() -> nn.Module:
    """Return ResNet-8, begun as the Keras one is."""
    network = resnet8()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            deviation = math.sqrt(2 / (module.weight[0].numel())) / 0.87962566103423978
            nn.init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        elif isinstance(module, nn.BatchNorm2d):
            module.eps, module.momentum = 1.001e-5, 0.1
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return network.to(memory_format=torch.channels_last)


def rate_at(update: int, updates: int, epochs: int) -> float:
    """Rise for three epochs, then half a cosine over the others."""
    warm = WARM_UP * updates
    if update < warm:
        return RATE * (update + 1) / (warm + 1)
    return 0.5 * RATE * (1 + math.cos(math.pi * (update - warm) / ((epochs - WARM_UP) * updates)))


def standardise(images: torch.Tensor) -> torch.Tensor:
    """Take each image's own mean and deviation, as bytes become numbers."""
    numbers = images.float().permute(0, 3, 1, 2)
    deviation, mean = torch.std_mean(numbers, (1, 2, 3), correction=0, keepdim=True)
    return ((numbers - mean) / deviation).contiguous(memory_format=torch.channels_last)


def augment(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Crop out of zeros, and mirror."""
    count, size = len(images), images.shape[1]
    padded = np.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)))
    out = np.empty_like(images)
    tops, lefts = rng.integers(0, 2 * PADDING + 1, (2, count))
    mirrored = rng.random(count) < 0.5
    for place, (top, left, mirror) in enumerate(zip(tops, lefts, mirrored, strict=True)):
        part = padded[place, top : top + size, left : left + size]
        out[place] = part[:, ::-1] if mirror else part
    return out


def train(x: np.ndarray, y: np.ndarray, seed: int, epochs: int, autocast: bool) -> nn.Module:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
    updates = len(x) // BATCH
    for epoch in range(epochs):
        order = rng.permutation(len(x))
        for number in range(updates):
            chosen = order[number * BATCH : (number + 1) * BATCH]
            optimizer.param_groups[0]["lr"] = rate_at(epoch * updates + number, updates, epochs)
            images = standardise(torch.from_numpy(augment(x[chosen], rng)))
            targets = torch.from_numpy(y[chosen]).long()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = functional.cross_entropy(network(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network


def accuracy(network: nn.Module, x: np.ndarray, y: np.ndarray, autocast: bool) -> float:
    network.eval()
    right = 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for first in range(0, len(x), 500):
            images = standardise(torch.from_numpy(x[first : first + 500]))
            right += int((network(images).argmax(1).numpy() == y[first : first + 500]).sum())
    return right / len(x)


def main() -> None:
    data, seed, epochs = np.load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    autocast = sys.argv[4] == "mixed_bfloat16"
    began = time.perf_counter()
    network = train(data["x_train"], data["y_train"], seed, epochs, autocast)
    seconds = time.perf_counter() - began
    print(accuracy(network, data["x_test"], data["y_test"], autocast), seconds)


if __name__ == "__main__":
    main()
