"""Networks of the zoo besides those of `keras.applications`: one of each kind, in plain Keras."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def unet() -> keras.Model:
    """Segment images in three classes, with concatenated shortcuts (Ronneberger et al., 2015)."""
    inputs = x = keras.Input((128, 128, 3))
    shortcuts = []
    for filters in (32, 64, 128):
        x = _two_convolutions(x, filters)
        shortcuts.append(x)
        x = layers.MaxPooling2D(2)(x)
    x = _two_convolutions(x, 256)
    for filters in (128, 64, 32):
        x = layers.Conv2DTranspose(filters, 2, 2, padding="same")(x)
        x = _two_convolutions(layers.Concatenate()([x, shortcuts.pop()]), filters)
    return keras.Model(inputs, layers.Conv2D(3, 1, activation="softmax")(x))


def convmixer() -> keras.Model:
    """Mix patches with 9x9 depthwise and 1x1 convolutions (Trockman and Kolter, 2022)."""
    inputs = keras.Input((160, 160, 3))
    x = _gelu_then_normalise(layers.Conv2D(256, 8, 8)(inputs))
    for _ in range(8):
        mixed = _gelu_then_normalise(layers.DepthwiseConv2D(9, padding="same")(x))
        x = _gelu_then_normalise(layers.Conv2D(256, 1)(layers.Add()([mixed, x])))
    return keras.Model(inputs, _classify(layers.GlobalAveragePooling2D()(x)))


def mlp_mixer() -> keras.Model:
    """Return Mixer-S/16: Dense layers across patches and across channels (Tolstikhin et al.)."""
    inputs = keras.Input((160, 160, 3))
    x = _patches(inputs, 512)
    for _ in range(8):
        across = layers.Permute((2, 1))(layers.LayerNormalization(epsilon=1e-6)(x))
        across = layers.Permute((2, 1))(_two_dense(across, 256))
        x = layers.Add()([x, across])
        x = layers.Add()([x, _two_dense(layers.LayerNormalization(epsilon=1e-6)(x), 2048)])
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return keras.Model(inputs, _classify(layers.GlobalAveragePooling1D()(x)))


def vit_tiny() -> keras.Model:
    """Return ViT-Ti/16: a transformer encoder of patches (Touvron et al., 2021)."""
    inputs = keras.Input((160, 160, 3))
    x = _patches(inputs, 192)
    x = PositionEmbedding()(x)
    for _ in range(12):
        normalised = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([x, layers.MultiHeadAttention(3, 64)(normalised, normalised)])
        x = layers.Add()([x, _two_dense(layers.LayerNormalization(epsilon=1e-6)(x), 768)])
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return keras.Model(inputs, _classify(layers.GlobalAveragePooling1D()(x)))


def mobilenet_v4() -> keras.Model:
    """Stack universal inverted bottlenecks, with up to two depthwise convolutions (Qin et al.)."""
    inputs = keras.Input((160, 160, 3))
    x = _normalised(inputs, 32, 3, 2, activation="relu")
    x = _normalised(x, 48, 3, 2, activation="relu")
    stages = ((80, 2, 4, (3, 5)), (160, 2, 6, (0, 3)), (160, 4, 4, (3, 3)), (256, 6, 4, (5, 5)))
    for stage, (filters, blocks, expansion, kernels) in enumerate(stages):
        for block in range(blocks):
            strides = 2 if not block and stage in (0, 1, 3) else 1
            x = _inverted_bottleneck(x, filters, expansion, kernels, strides)
    x = layers.GlobalAveragePooling2D()(_normalised(x, 960, 1, activation="relu"))
    return keras.Model(inputs, _classify(x))


def resnet_1d() -> keras.Model:
    """Classify signals of 12 channels, as electrocardiograms, with kernels of 16."""
    inputs = keras.Input((2048, 12))
    x = _normalise_then_relu(layers.Conv1D(64, 16, padding="same", use_bias=False)(inputs))
    for filters in (128, 192, 256, 320):
        shortcut = layers.Conv1D(filters, 1, use_bias=False)(layers.MaxPooling1D(4)(x))
        x = layers.Conv1D(filters, 16, padding="same", use_bias=False)(x)
        x = layers.Dropout(0.2)(_normalise_then_relu(x))
        x = layers.Conv1D(filters, 16, 4, padding="same", use_bias=False)(x)
        x = _normalise_then_relu(layers.Add()([x, shortcut]))
    return keras.Model(inputs, _classify(layers.Flatten()(x), 6))


def wavenet() -> keras.Model:
    """Predict each sample of a signal from those before it, with dilated causal convolutions."""
    inputs = keras.Input((4096, 1))
    x = layers.Conv1D(32, 2, padding="causal")(inputs)
    outputs = []
    for dilation in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        both = (
            layers.Conv1D(32, 2, padding="causal", dilation_rate=dilation, activation=activation)(x)
            for activation in ("tanh", "sigmoid")
        )
        gated = layers.Multiply()(list(both))
        outputs.append(layers.Conv1D(64, 1)(gated))
        x = layers.Add()([x, layers.Conv1D(32, 1)(gated)])
    x = layers.Conv1D(64, 1, activation="relu")(layers.ReLU()(layers.Add()(outputs)))
    return keras.Model(inputs, layers.Conv1D(256, 1, activation="softmax")(x))


def resnet_3d() -> keras.Model:
    """Classify short videos with 3x3x3 convolutions (Hara et al., 2018)."""
    inputs = keras.Input((16, 64, 64, 3))
    x = layers.Conv3D(32, (3, 7, 7), (1, 2, 2), padding="same", use_bias=False)(inputs)
    x = _normalise_then_relu(x)
    for filters, strides in ((32, 1), (64, 2), (128, 2), (256, 2)):
        shortcut = layers.Conv3D(filters, 1, strides, use_bias=False)(x)
        x = layers.Conv3D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = layers.Conv3D(filters, 3, padding="same", use_bias=False)(_normalise_then_relu(x))
        x = layers.ReLU()(layers.Add()([layers.BatchNormalization()(x), shortcut]))
    return keras.Model(inputs, _classify(layers.GlobalAveragePooling3D()(x), 400))


def resnext() -> keras.Model:
    """Return a ResNeXt of half the depth of ResNeXt-50, with 32 groups (Xie et al., 2017)."""
    inputs = keras.Input((160, 160, 3))
    x = _normalised(inputs, 64, 7, 2, activation="relu")
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, filters in enumerate((256, 512, 1024, 2048)):
        for block in range(2):
            strides = 2 if stage and not block else 1
            shortcut = x if block else _normalised(x, filters, 1, strides)
            x = _normalised(x, filters // 2, 1, activation="relu")
            x = _normalised(x, filters // 2, 3, strides, groups=32, activation="relu")
            x = layers.ReLU()(layers.Add()([_normalised(x, filters, 1), shortcut]))
    return keras.Model(inputs, _classify(layers.GlobalAveragePooling2D()(x)))


def deeplab() -> keras.Model:
    """Segment images with dilated convolutions in parallel (Chen et al., 2017)."""
    inputs = keras.Input((128, 128, 3))
    x = _normalised(inputs, 32, 3, 2, activation="relu")
    x = _normalised(x, 64, 3, 2, activation="relu")
    x = _normalised(x, 128, 3, 2, activation="relu")
    for dilation in (2, 2, 4, 4):
        x = _normalised(x, 128, 3, dilation_rate=dilation, activation="relu")
    branches = [_normalised(x, 64, 1, activation="relu")]
    for dilation in (3, 6, 9):
        branches.append(_normalised(x, 64, 3, dilation_rate=dilation, activation="relu"))
    x = _normalised(layers.Concatenate()(branches), 128, 1, activation="relu")
    x = layers.Conv2D(21, 1)(x)
    x = layers.UpSampling2D(8, interpolation="bilinear")(x)
    return keras.Model(inputs, layers.Softmax()(x))


def autoencoder() -> keras.Model:
    """Reconstruct images with strided and with transposed 4x4 convolutions, as a DCGAN has."""
    inputs = x = keras.Input((64, 64, 3))
    for filters in (64, 128, 256, 512):
        x = layers.Conv2D(filters, 4, 2, padding="same", use_bias=False)(x)
        x = layers.LeakyReLU(0.2)(layers.BatchNormalization()(x))
    for filters in (256, 128, 64):
        x = layers.Conv2DTranspose(filters, 4, 2, padding="same", use_bias=False)(x)
        x = _normalise_then_relu(x)
    x = layers.Conv2DTranspose(3, 4, 2, padding="same", activation="tanh")(x)
    return keras.Model(inputs, x)


def group_norm_resnet() -> keras.Model:
    """Return a residual network with group normalisation and SiLU, as in diffusion models."""
    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(64, 3, padding="same")(inputs)
    for stage, filters in enumerate((64, 128, 256)):
        for block in range(2):
            strides = 2 if stage and not block else 1
            shortcut = x if block else layers.Conv2D(filters, 1, strides)(x)
            x = layers.Activation("silu")(layers.GroupNormalization(32)(x))
            x = layers.Conv2D(filters, 3, strides, padding="same")(x)
            x = layers.Activation("silu")(layers.GroupNormalization(32)(x))
            x = layers.Add()([layers.Conv2D(filters, 3, padding="same")(x), shortcut])
    x = layers.Activation("silu")(layers.GroupNormalization(32)(x))
    return keras.Model(inputs, _classify(layers.GlobalAveragePooling2D()(x), 100))


def layer_norm_resnet() -> keras.Model:
    """Return a residual network with layer normalisation over channels, and GELU."""
    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(64, 3, padding="same")(inputs)
    for stage, filters in enumerate((64, 128, 256)):
        for block in range(2):
            strides = 2 if stage and not block else 1
            shortcut = x if block else layers.Conv2D(filters, 1, strides)(x)
            x = layers.LayerNormalization(epsilon=1e-6)(x)
            x = layers.Conv2D(filters, 3, strides, padding="same", activation="gelu")(x)
            x = layers.LayerNormalization(epsilon=1e-6)(x)
            x = layers.Add()([layers.Conv2D(filters, 3, padding="same")(x), shortcut])
    x = layers.LayerNormalization(epsilon=1e-6)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, _classify(x, 100))


def lstm() -> keras.Model:
    """Classify series of 64 values with two LSTM layers."""
    inputs = keras.Input((128, 64))
    x = layers.LSTM(256, return_sequences=True)(inputs)
    return keras.Model(inputs, _classify(layers.LSTM(256)(x), 10))


class PositionEmbedding(layers.Layer):
    """Adds a learned vector to each element of a sequence."""

    def build(self, input_shape: tuple[int, ...]) -> None:
        self.vectors = self.add_weight(shape=(1, *input_shape[1:]), initializer="random_normal")

    def call(self, x: Any) -> Any:
        return x + self.vectors


def _classify(x: Any, classes: int = 1000) -> Any:
    return layers.Dense(classes, activation="softmax")(x)


def _normalised(
    x: Any, filters: int, kernel: int, strides: int = 1, activation: str | None = None, **form: int
) -> Any:
    x = layers.Conv2D(filters, kernel, strides, padding="same", use_bias=False, **form)(x)
    x = layers.BatchNormalization()(x)
    return layers.Activation(activation)(x) if activation else x


def _normalise_then_relu(x: Any) -> Any:
    return layers.ReLU()(layers.BatchNormalization()(x))


def _gelu_then_normalise(x: Any) -> Any:
    return layers.BatchNormalization()(layers.Activation("gelu")(x))


def _two_convolutions(x: Any, filters: int) -> Any:
    x = _normalised(x, filters, 3, activation="relu")
    return _normalised(x, filters, 3, activation="relu")


def _two_dense(x: Any, units: int) -> Any:
    return layers.Dense(x.shape[-1])(layers.Dense(units, activation="gelu")(x))


def _patches(images: Any, width: int) -> Any:
    """Return a sequence of the images' 16x16 patches, each projected to some numbers."""
    return layers.Reshape((-1, width))(layers.Conv2D(width, 16, 16)(images))


def _inverted_bottleneck(
    x: Any, filters: int, expansion: int, kernels: tuple[int, int], strides: int
) -> Any:
    """Return a universal inverted bottleneck; a kernel of 0 omits its depthwise convolution."""
    start, middle = kernels
    shortcut, width = x, x.shape[-1]
    if start:
        x = layers.DepthwiseConv2D(start, 1 if middle else strides, padding="same")(x)
        x = layers.BatchNormalization()(x)
    x = _normalised(x, width * expansion, 1, activation="relu")
    if middle:
        x = layers.DepthwiseConv2D(middle, strides, padding="same", use_bias=False)(x)
        x = _normalise_then_relu(x)
    x = _normalised(x, filters, 1)
    return layers.Add()([x, shortcut]) if strides == 1 and width == filters else x
