"""The same networks in PyTorch: the same layers and parameters, with logits instead of softmax.

Where Keras pads a strided convolution on one side only, these pad both sides, which PyTorch does
inside the convolution: the same arithmetic, without a copy.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(1600, 10),
    )


def toy_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(5),
        nn.Conv2d(4, 8, 1),
        nn.ReLU(),
        nn.MaxPool2d(5),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def resnet8() -> nn.Module:
    return _cifar_resnet(blocks=1, filters=(16, 32, 64))


def resnet20_wide() -> nn.Module:
    return _cifar_resnet(blocks=3, filters=(64, 128, 256))


def resnet50() -> nn.Module:
    """Return ResNet-50 v1 as Keras has it: biases, and the stride in the first 1x1."""
    parts: list[nn.Module] = [*_normalised(3, 64, 7, 2, bias=True), nn.ReLU()]
    parts.append(nn.MaxPool2d(3, 2, padding=1))
    channels = 64
    for filters, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            parts.append(_Bottleneck(channels, filters, 1 if block else stride))
            channels = 4 * filters
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def cosmoflow() -> nn.Module:
    parts: list[nn.Module] = []
    channels = 4
    for filters in (16, 32, 64, 128, 256):
        parts += [nn.Conv3d(channels, filters, 2, padding="same"), nn.LeakyReLU(0.3)]
        parts.append(nn.MaxPool3d(2))
        channels = filters
    parts.append(nn.Flatten())
    for inputs, units in ((2048, 128), (128, 64)):
        parts += [nn.Linear(inputs, units), nn.LeakyReLU(0.3), nn.Dropout(0.2)]
    return nn.Sequential(*parts, nn.Linear(64, 4), nn.Tanh(), _Scale(1.2))


def mobilenet_v2() -> nn.Module:
    # Expansion, filters, repeats, stride of each stage.
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    parts: list[nn.Module] = [*_normalised(3, 32, 3, 2, epsilon=1e-3), nn.ReLU6()]
    channels = 32
    for expansion, filters, repeats, stride in stages:
        for repeat in range(repeats):
            parts.append(_InvertedResidual(channels, filters, 1 if repeat else stride, expansion))
            channels = filters
    parts += [*_normalised(channels, 1280, 1, epsilon=1e-3), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(1280, 1000))


def efficientnet_b0() -> nn.Module:
    # Kernel, repeats, filters, expansion, stride of each stage.
    stages = (
        (3, 1, 16, 1, 1),
        (3, 2, 24, 6, 2),
        (5, 2, 40, 6, 2),
        (3, 3, 80, 6, 2),
        (5, 3, 112, 6, 1),
        (5, 4, 192, 6, 2),
        (3, 1, 320, 6, 1),
    )
    parts: list[nn.Module] = [_Preprocess(), *_normalised(3, 32, 3, 2, epsilon=1e-3), nn.SiLU()]
    total, channels, index = sum(stage[1] for stage in stages), 32, 0
    for kernel, repeats, filters, expansion, stride in stages:
        for repeat in range(repeats):
            step = 1 if repeat else stride
            drop = 0.2 * index / total
            parts.append(_MobileBlock(channels, filters, kernel, step, expansion, drop))
            channels, index = filters, index + 1
    parts += [*_normalised(channels, 1280, 1, epsilon=1e-3), nn.SiLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000))


def _normalised(
    channels: int,
    filters: int,
    kernel: int,
    stride: int = 1,
    *,
    bias: bool = False,
    groups: int = 1,
    epsilon: float = 1.001e-5,
) -> list[nn.Module]:
    """Return a convolution and the batch normalisation behind it."""
    convolution = nn.Conv2d(
        channels, filters, kernel, stride, padding=kernel // 2, groups=groups, bias=bias
    )
    return [convolution, nn.BatchNorm2d(filters, eps=epsilon)]


def _cifar_resnet(blocks: int, filters: tuple[int, int, int]) -> nn.Module:
    parts: list[nn.Module] = [*_normalised(3, filters[0], 3), nn.ReLU()]
    channels = filters[0]
    for stack, width in enumerate(filters):
        for block in range(blocks):
            parts.append(_BasicBlock(channels, width, 2 if stack and not block else 1))
            channels = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class _BasicBlock(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, filters - channels
        first = _normalised(channels, filters, 3, stride)
        self.residual = nn.Sequential(*first, nn.ReLU(), *_normalised(filters, filters, 3))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.stride > 1:
            shortcut = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))
        return functional.relu(self.residual(x) + shortcut)


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_normalised(channels, filters, 1, stride, bias=True),
            nn.ReLU(),
            *_normalised(filters, filters, 3, bias=True),
            nn.ReLU(),
            *_normalised(filters, 4 * filters, 1, bias=True),
        )
        self.shortcut: nn.Module = nn.Identity()
        if channels != 4 * filters:
            self.shortcut = nn.Sequential(*_normalised(channels, 4 * filters, 1, stride, bias=True))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.residual(x) + self.shortcut(x))


class _InvertedResidual(nn.Module):
    """Expand, filter each channel, project."""

    def __init__(self, channels: int, filters: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        parts: list[nn.Module] = []
        if expansion > 1:
            parts = [*_normalised(channels, wide, 1, epsilon=1e-3), nn.ReLU6()]
        parts += [*_normalised(wide, wide, 3, stride, groups=wide, epsilon=1e-3), nn.ReLU6()]
        self.residual = nn.Sequential(*parts, *_normalised(wide, filters, 1, epsilon=1e-3))
        self.skip = stride == 1 and channels == filters

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x) if self.skip else self.residual(x)


class _MobileBlock(nn.Module):
    """Expand, filter each channel, squeeze and excite, project; dropped at random as a whole."""

    def __init__(
        self, channels: int, filters: int, kernel: int, stride: int, expansion: int, drop: float
    ) -> None:
        super().__init__()
        wide = channels * expansion
        expand: list[nn.Module] = []
        if expansion > 1:
            expand = [*_normalised(channels, wide, 1, epsilon=1e-3), nn.SiLU()]
        depthwise = _normalised(wide, wide, kernel, stride, groups=wide, epsilon=1e-3)
        squeezed = max(1, channels // 4)
        self.filter = nn.Sequential(*expand, *depthwise, nn.SiLU())
        self.excite = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, squeezed, 1),
            nn.SiLU(),
            nn.Conv2d(squeezed, wide, 1),
            nn.Sigmoid(),
        )
        self.project = nn.Sequential(*_normalised(wide, filters, 1, epsilon=1e-3))
        self.skip, self.drop = stride == 1 and channels == filters, drop

    def forward(self, x: Tensor) -> Tensor:
        y = self.filter(x)
        y = self.project(y * self.excite(y))
        if not self.skip:
            return y
        if self.training and self.drop > 0:
            y = y * functional.dropout(y.new_ones(y.shape[0], 1, 1, 1), self.drop)
        return x + y


class _Preprocess(nn.Module):
    """The rescaling and normalisation inside Keras's EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.register_buffer("deviation", torch.ones(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x / 255 - self.mean) / self.deviation


class _Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor
