"""Workloads: shapes, batch sizes and optimizers, independent of any framework.

The networks are in `keras_models.py`, once for every Keras peer, and in `torch_models.py`.
`parameters` is the number of trainable parameters. Every runner compares its network with it, so
two peers cannot silently train different networks. `zoo.py` has workloads for Keras peers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Workload:
    """One row of the page.

    Attributes:
        name: the name on the command line.
        title: the name on the page.
        network: the function in `source`, and in `torch_models.py`, that makes it.
        batch: samples in a step, over all devices.
        input_shape: of one sample, channels last.
        outputs: classes, or numbers to regress to.
        parameters: how many are trained, or None if all peers share one definition.
        steps: steps in an epoch; the data in memory holds so many batches.
        loop_steps: steps in one device call, for peers that can do that.
        momentum: of SGD.
        kind: training; inference, batch by batch in a framework's fastest way; or prediction, by
            `model.predict`.
        regression: mean squared error in place of cross-entropy.
        learning_rate: of the optimizer.
        optimizer: `sgd` or `adam`.
        source: the module of this package with the Keras network, or `keras.applications`.
        target_shape: the shape of a sample's targets, if a sample has several.
    """

    name: str
    title: str
    network: str
    batch: int
    input_shape: tuple[int, ...]
    outputs: int
    parameters: int | None
    steps: int
    loop_steps: int
    momentum: float = 0.9
    kind: Literal["training", "inference", "prediction"] = "training"
    regression: bool = False
    learning_rate: float = 0.01
    optimizer: Literal["sgd", "adam"] = "sgd"
    source: str = "keras_models"
    target_shape: tuple[int, ...] = ()

    def whole_steps(self, seconds: float, step_seconds: float) -> int:
        """Return the steps that fill about `seconds`: whole loops, and whole epochs if several."""
        unit = self.loop_steps
        wanted = seconds / max(step_seconds, 1e-9)
        if wanted >= self.steps:
            unit = self.steps
        return unit * max(1, round(wanted / unit))

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Return an epoch of inputs, channels last, and targets: noise from a fixed seed."""
        rng = np.random.default_rng(0)
        samples = self.batch * self.steps
        x = rng.standard_normal((samples, *self.input_shape), dtype=np.float32)
        shape = (samples, *self.target_shape)
        if self.regression:
            return x, rng.uniform(-1, 1, (*shape, self.outputs)).astype(np.float32)
        return x, rng.integers(0, self.outputs, shape).astype(np.int32)

    @property
    def megabytes(self) -> float:
        return 4e-6 * self.batch * self.steps * math.prod(self.input_shape)


_CIFAR, _IMAGENET = (32, 32, 3), (224, 224, 3)

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "toy", "toy_model, batch 64", "toy_model", 64, _CIFAR, 10, 242, steps=200, loop_steps=20
        ),
        Workload(
            "mnist",
            "MNIST CNN, batch 64",
            "mnist_cnn",
            64,
            (28, 28, 1),
            10,
            34_826,
            steps=400,
            loop_steps=20,
            momentum=0.0,
        ),
        Workload(
            "resnet8",
            "CIFAR ResNet-8, batch 64",
            "resnet8",
            64,
            _CIFAR,
            10,
            75_290,
            steps=100,
            loop_steps=20,
        ),
        Workload(
            "resnet20-wide",
            "CIFAR ResNet-20, 64-128-256 filters, batch 64",
            "resnet20_wide",
            64,
            _CIFAR,
            10,
            4_286_026,
            steps=8,
            loop_steps=2,
        ),
        Workload(
            "resnet50",
            "ResNet-50 at 224, batch 8",
            "resnet50",
            8,
            _IMAGENET,
            1000,
            25_583_592,
            steps=8,
            loop_steps=2,
        ),
        Workload(
            "cosmoflow",
            "CosmoFlow 64x64x64x4, batch 4",
            "cosmoflow",
            4,
            (64, 64, 64, 4),
            4,
            619_956,
            steps=20,
            loop_steps=10,
            momentum=0.0,
            regression=True,
        ),
        Workload(
            "efficientnet",
            "EfficientNet-B0 at 224, batch 8",
            "efficientnet_b0",
            8,
            _IMAGENET,
            1000,
            5_288_548,
            steps=8,
            loop_steps=2,
        ),
        *(
            Workload(
                f"{prefix}-{batch}",
                f"{title} inference, batch {batch}",
                network,
                batch,
                _IMAGENET,
                1000,
                parameters,
                steps=16 if batch == 1 else 2,
                loop_steps=1,
                kind="inference",
            )
            for prefix, title, network, parameters in (
                ("infer", "ResNet-50", "resnet50", 25_583_592),
                ("infer-mobilenet", "MobileNetV2", "mobilenet_v2", 3_504_872),
                ("infer-efficientnet", "EfficientNet-B0", "efficientnet_b0", 5_288_548),
            )
            for batch in (1, 32)
        ),
    )
}
