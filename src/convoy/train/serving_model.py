"""The network of a run of `convoy train` for serving, with images as bytes as its input."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
from convoy import precision
from convoy.data.catalog import DatasetInfo, Normalisation
from convoy.layers import Decompress, Preprocess
from convoy.train.flags import Options
from convoy.train.network import make_network
from convoy.train.run_settings import batch_config, check_options, dataset_info
from convoy.train.validation import load_checkpoint

Preprocessing = Callable[[Any], Any]
"""A function that turns images as bytes into the input of a model."""


@dataclass(frozen=True)
class ServingModel:
    """A network with its preprocessing.

    Attributes:
        model: the network.
        preprocessing: preprocessing of images as bytes; `None` if the network accepts bytes.
        info: description of the dataset that it was trained on.
        class_names: names of the classes; empty if they are unknown.
    """

    model: keras.Model
    preprocessing: Preprocessing | None
    info: DatasetInfo
    class_names: list[str]


def make_serving_model(options: Options, weights: Path | None) -> ServingModel:
    """Make the network that options describe, with the weights of a checkpoint.

    Args:
        options: options of the training run.
        weights: path of a `.weights.h5` file; without it, weights are random.

    Raises:
        ValueError: if the options contradict each other, or the weights are another network's.
    """
    options = replace(options, synthetic_data=None, random_erasing=0.0)
    check_options(options)
    info = dataset_info(options, count=False)
    with precision.find(options.precision).scope():
        model = make_network(options, info, batch_config(options, []).gradient_accumulation)
        if weights is not None:
            load_checkpoint(model, weights)
    preprocessing: Preprocessing | None = None
    if not options.eight_bit_transfer:
        on_device = options.accelerator_side_preprocess
        preprocessing = preprocessing_from_bytes(None if on_device else info.normalisation)
    return ServingModel(model, preprocessing, info, list(info.class_names))


def preprocessing_from_bytes(normalisation: Normalisation | None) -> Preprocessing:
    """Return the function that converts images from bytes to floats, and normalises them."""

    def preprocess(images: Any) -> Any:
        numbers = Decompress(name="from_bytes", dtype="float32")(images)
        if normalisation is None:
            return numbers
        return Preprocess(normalisation, name="normalisation", dtype="float32")(numbers)

    return preprocess
