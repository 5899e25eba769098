"""Workloads of the zoo: networks that nothing was tuned for, in training and in `predict`.

Every model of `keras.applications`, and one network of each other kind from `zoo_networks.py`.
"""

from __future__ import annotations

import dataclasses

from benchmarks.peers.workloads import Workload

APPLICATIONS = (
    "ConvNeXtTiny", "ConvNeXtSmall", "ConvNeXtBase", "ConvNeXtLarge", "ConvNeXtXLarge",
    "DenseNet121", "DenseNet169", "DenseNet201", "EfficientNetB0", "EfficientNetB1",
    "EfficientNetB2", "EfficientNetB3", "EfficientNetB4", "EfficientNetB5", "EfficientNetB6",
    "EfficientNetB7", "EfficientNetV2B0", "EfficientNetV2B1", "EfficientNetV2B2",
    "EfficientNetV2B3", "EfficientNetV2S", "EfficientNetV2M", "EfficientNetV2L",
    "InceptionResNetV2", "InceptionV3", "MobileNet", "MobileNetV2", "MobileNetV3Large",
    "MobileNetV3Small", "NASNetLarge", "NASNetMobile", "ResNet50", "ResNet50V2", "ResNet101",
    "ResNet101V2", "ResNet152", "ResNet152V2", "VGG16", "VGG19", "Xception",
)  # fmt: skip
IMAGE = (160, 160, 3)
"""Every model of `keras.applications` takes images of this size."""


def _name(network: str) -> str:
    return network.lower().replace("_", "-")


def _workload(
    title: str,
    network: str,
    input_shape: tuple[int, ...] = IMAGE,
    outputs: int = 1000,
    batch: int = 8,
    target_shape: tuple[int, ...] = (),
    regression: bool = False,
    source: str = "zoo_networks",
) -> Workload:
    return Workload(
        f"{_name(network)}-fit",
        title,
        network,
        batch,
        input_shape,
        outputs,
        # All peers train the same definition, so there is nothing to compare.
        parameters=None,
        steps=8,
        # The default of `compile`.
        loop_steps=1,
        regression=regression,
        optimizer="adam",
        learning_rate=1e-3,
        source=source,
        target_shape=target_shape,
    )


_TRAINING = (
    *(_workload(name, name, source="keras.applications") for name in APPLICATIONS),
    _workload("U-Net", "unet", (128, 128, 3), 3, target_shape=(128, 128)),
    _workload("ConvMixer-256/8", "convmixer"),
    _workload("MLP-Mixer-S/16", "mlp_mixer"),
    _workload("ViT-Ti/16", "vit_tiny"),
    _workload("MobileNetV4 blocks", "mobilenet_v4"),
    _workload("1-D ResNet", "resnet_1d", (2048, 12), 6, batch=16),
    _workload("WaveNet (1-D, dilated)", "wavenet", (4096, 1), 256, target_shape=(4096,)),
    _workload("3-D ResNet", "resnet_3d", (16, 64, 64, 3), 400, batch=4),
    _workload("ResNeXt (grouped)", "resnext"),
    _workload("DeepLab (dilated)", "deeplab", (128, 128, 3), 21, target_shape=(128, 128)),
    _workload(
        "Autoencoder (transposed)",
        "autoencoder",
        (64, 64, 3),
        3,
        batch=16,
        target_shape=(64, 64),
        regression=True,
    ),
    _workload("ResNet, GroupNormalization", "group_norm_resnet", (64, 64, 3), 100),
    _workload("ResNet, LayerNormalization", "layer_norm_resnet", (64, 64, 3), 100),
    _workload("LSTM", "lstm", (128, 64), 10, batch=32),
)


def _prediction(training: Workload) -> Workload:
    name = f"{_name(training.network)}-predict"
    return dataclasses.replace(training, name=name, kind="prediction")


ZOO = {
    workload.name: workload
    for training in _TRAINING
    for workload in (training, _prediction(training))
}
