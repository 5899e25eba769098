"""Small task and backbone models of KerasHub, made by their constructors, with data for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

SAMPLES, CLASSES, WORDS, LENGTH = 8, 3, 19, 6

Data = tuple[Any, ...]
"""Inputs, targets and, for some, sample weights."""


@dataclass(frozen=True)
class HubCase:
    """A model of KerasHub.

    Attributes:
        make: creates the model, given `keras_hub.models`.
        data: creates its data, given a random generator.
        normalizes: whether it has batch normalisation, which sees micro-batches in a pipeline.
        drops: whether it has dropout, which draws other numbers for the parts of a batch.
        shares_embedding: whether its first and its last layer are one, so that no cut by cost
            exists: both ends must be on one device.
    """

    make: Callable[[Any], keras.Model]
    data: Callable[[np.random.Generator], Data]
    normalizes: bool = False
    drops: bool = False
    shares_embedding: bool = False


def _images(size: int) -> Callable[[np.random.Generator], Data]:
    def data(rng: np.random.Generator) -> Data:
        x = rng.uniform(0, 1, (SAMPLES, size, size, 3)).astype("float32")
        return x, rng.integers(0, CLASSES, SAMPLES).astype("int32")

    return data


def _labelled_pixels(size: int) -> Callable[[np.random.Generator], Data]:
    def data(rng: np.random.Generator) -> Data:
        x, _ = _images(size)(rng)
        return x, np.eye(CLASSES, dtype="float32")[rng.integers(0, CLASSES, x.shape[:3])]

    return data


def _words(*names: str) -> Callable[[np.random.Generator], Data]:
    def data(rng: np.random.Generator) -> Data:
        mask = np.ones((SAMPLES, LENGTH), "int32")
        mask[::2, -2:] = 0
        parts = {
            "token_ids": rng.integers(1, WORDS, mask.shape).astype("int32"),
            "padding_mask": mask,
            "segment_ids": np.repeat([[0, 0, 0, 1, 1, 1]], SAMPLES, 0).astype("int32"),
        }
        x = {name: parts[name] for name in ("token_ids", *names)}
        return x, rng.integers(0, CLASSES, SAMPLES).astype("int32")

    return data


def _next_words(rng: np.random.Generator) -> Data:
    x, _ = _words("padding_mask")(rng)
    return x, np.roll(x["token_ids"], -1, axis=1), x["padding_mask"].astype("float32")


def _masked_words(rng: np.random.Generator) -> Data:
    x, _ = _words("padding_mask", "segment_ids")(rng)
    x["mask_positions"] = np.repeat([[1, 3]], SAMPLES, 0).astype("int32")
    shape = x["mask_positions"].shape
    return x, rng.integers(0, WORDS, shape).astype("int32"), np.ones(shape, "float32")


def _two_texts(rng: np.random.Generator) -> Data:
    x = {}
    for side, length in (("encoder", LENGTH), ("decoder", LENGTH - 1)):
        x[f"{side}_token_ids"] = rng.integers(1, WORDS, (SAMPLES, length)).astype("int32")
        x[f"{side}_padding_mask"] = np.ones((SAMPLES, length), "int32")
    return x, rng.integers(0, WORDS, (SAMPLES, LENGTH - 1)).astype("int32")


_TEXT = {
    "vocabulary_size": WORDS,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "dropout": 0.0,
    "max_sequence_length": 12,
}
_HEAD = {"num_classes": CLASSES, "dropout": 0.0}


def _resnet(models: Any, size: int) -> Any:
    return models.ResNetBackbone(
        [64], [3], [64, 8, 8], [1, 1, 1], [1, 2, 2], "basic_block", image_shape=(size, size, 3)
    )


def _deeplab(models: Any) -> Any:
    return models.DeepLabV3Backbone(
        _resnet(models, 32),
        spatial_pyramid_pooling_key="P4",
        upsampling_size=4,
        dilation_rates=[2, 4],
        low_level_feature_key="P2",
        projection_filters=4,
        image_shape=(32, 32, 3),
    )


def _efficientnet(models: Any) -> Any:
    return models.EfficientNetBackbone(
        stackwise_width_coefficients=[0.5, 0.5],
        stackwise_depth_coefficients=[1.0, 1.0],
        stackwise_kernel_sizes=[3, 3],
        stackwise_num_repeats=[1, 1],
        stackwise_input_filters=[16, 8],
        stackwise_output_filters=[8, 16],
        stackwise_expansion_ratios=[1, 2],
        stackwise_squeeze_and_excite_ratios=[0.25, 0.25],
        stackwise_strides=[1, 2],
        stackwise_block_types=["v1", "v1"],
        stackwise_force_input_filters=[0, 0],
        stackwise_nores_option=[False, False],
        dropout=0.0,
        input_shape=(32, 32, 3),
        num_features=16,
    )


def _mobilenet(models: Any) -> Any:
    return models.MobileNetBackbone(
        stackwise_expansion=[[8, 12]],
        stackwise_num_blocks=[2],
        stackwise_num_filters=[[4, 4]],
        stackwise_kernel_size=[[3, 3]],
        stackwise_num_strides=[[2, 1]],
        stackwise_se_ratio=[[0.25, None]],
        stackwise_activation=[["relu", "hard_swish"]],
        stackwise_padding=[[1, 1]],
        output_num_filters=16,
        depthwise_filters=4,
        depthwise_stride=2,
        depthwise_residual=False,
        last_layer_filter=8,
        squeeze_and_excite=0.5,
        image_shape=(32, 32, 3),
        input_num_filters=4,
    )


def _cspnet(models: Any) -> Any:
    return models.CSPNetBackbone(
        stem_filters=4,
        stem_kernel_size=3,
        stem_strides=1,
        stackwise_depth=[1, 1],
        stackwise_strides=[2, 2],
        stackwise_num_filters=[4, 8],
        block_type="dark_block",
        stage_type="csp",
        expand_ratio=[2.0],
        image_shape=(16, 16, 3),
    )


def _mit(models: Any) -> Any:
    return models.MiTBackbone(
        [1, 1], 2, [1, 1], [2, 1], 0.0, [7, 3], [4, 2], image_shape=(16, 16, 3), hidden_dims=[4, 8]
    )


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in _TEXT.items() if key != name}


CASES = {
    "ResNetImageClassifier": HubCase(
        lambda models: models.ResNetImageClassifier(_resnet(models, 32), CLASSES),
        _images(32),
        normalizes=True,
    ),
    "DenseNetImageClassifier": HubCase(
        lambda models: models.DenseNetImageClassifier(
            models.DenseNetBackbone([1, 1], image_shape=(32, 32, 3), growth_rate=4), CLASSES
        ),
        _images(32),
        normalizes=True,
    ),
    "EfficientNetImageClassifier": HubCase(
        lambda models: models.EfficientNetImageClassifier(_efficientnet(models), CLASSES),
        _images(32),
        normalizes=True,
    ),
    "MobileNetImageClassifier": HubCase(
        lambda models: models.MobileNetImageClassifier(_mobilenet(models), CLASSES),
        _images(32),
        normalizes=True,
    ),
    "CSPNetImageClassifier": HubCase(
        lambda models: models.CSPNetImageClassifier(_cspnet(models), CLASSES),
        _images(16),
        normalizes=True,
    ),
    "MiTImageClassifier": HubCase(
        lambda models: models.MiTImageClassifier(_mit(models), CLASSES),
        _images(16),
        drops=True,
    ),
    "ViTImageClassifier": HubCase(
        lambda models: models.ViTImageClassifier(
            models.ViTBackbone((16, 16, 3), (4, 4), 2, 2, 8, 12), CLASSES
        ),
        _images(16),
    ),
    "BertTextClassifier": HubCase(
        lambda models: models.BertTextClassifier(
            models.BertBackbone(**_without("dropout")), num_classes=CLASSES
        ),
        _words("padding_mask", "segment_ids"),
        drops=True,
    ),
    "DistilBertTextClassifier": HubCase(
        lambda models: models.DistilBertTextClassifier(models.DistilBertBackbone(**_TEXT), **_HEAD),
        _words("padding_mask"),
    ),
    "RobertaTextClassifier": HubCase(
        lambda models: models.RobertaTextClassifier(models.RobertaBackbone(**_TEXT), **_HEAD),
        _words("padding_mask"),
    ),
    "FNetTextClassifier": HubCase(
        lambda models: models.FNetTextClassifier(
            models.FNetBackbone(**_without("num_heads")), **_HEAD
        ),
        _words("segment_ids"),
    ),
    "BertMaskedLM": HubCase(
        lambda models: models.BertMaskedLM(models.BertBackbone(**_TEXT)),
        _masked_words,
        shares_embedding=True,
    ),
    "GPT2CausalLM": HubCase(
        lambda models: models.GPT2CausalLM(models.GPT2Backbone(**_TEXT)),
        _next_words,
        shares_embedding=True,
    ),
    "LlamaCausalLM": HubCase(
        lambda models: models.LlamaCausalLM(models.LlamaBackbone(WORDS, 2, 2, 8, 12, 1)),
        _next_words,
        shares_embedding=True,
    ),
    "GemmaCausalLM": HubCase(
        lambda models: models.GemmaCausalLM(models.GemmaBackbone(WORDS, 2, 2, 1, 8, 16, 4)),
        _next_words,
        shares_embedding=True,
    ),
}

# These amplify rounding. Some inputs of ReLUs are zero up to rounding, so that a gradient passes or
# not, and the last batch normalisation of the small ResNet sees one pixel per image.
ILL_CONDITIONED = {
    "DeepLabV3ImageSegmenter": HubCase(
        lambda models: models.DeepLabV3ImageSegmenter(_deeplab(models), CLASSES),
        _labelled_pixels(32),
        normalizes=True,
    ),
    "ResNetImageClassifier of 16 pixels": HubCase(
        lambda models: models.ResNetImageClassifier(_resnet(models, 16), CLASSES),
        _images(16),
        normalizes=True,
    ),
}
