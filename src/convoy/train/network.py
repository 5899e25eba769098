"""The network of a run: a model by name, with the normalisation and input layers of the options."""

from collections.abc import Callable

import keras
import numpy as np
from convoy import keras_bridge
from convoy.data.catalog import DatasetInfo
from convoy.layers import Decompress, MeanOfViews, Preprocess, SyntheticImages, Views
from convoy.train.flags import Options
from convoy.train.models import make_model
from convoy.train.normalization import norm_replacement
from keras import layers

BYTES = (0, 255)


def make_network(options: Options, info: DatasetInfo, micro_batches: int) -> keras.Model:
    """Return the network of a run.

    Args:
        options: options of the run.
        info: description of the dataset.
        micro_batches: number of micro-batches per replica and weight update.

    Raises:
        ValueError: if there is no such network.
    """
    network = make_model(options.model, info.shape, info.classes)
    replace = norm_replacement(options.norm_layer, micro_batches)
    inputs, first = _first_layers(options, info)
    if replace is None and not first:
        return network
    images = inputs
    for layer in first:
        images = layer(images)
    outputs = keras_bridge.replay_graph(network, images, replace or (lambda layer: layer))
    return keras.Model(inputs, outputs, name=network.name)


def with_views(network: keras.Model, count: int) -> keras.Model:
    """Return a network of the same layers that averages over several views of each image.

    Args:
        network: network that ends in probabilities.
        count: number of views, as in `convoy.layers.Views`.
    """
    (images,) = network.inputs
    inputs = keras.Input(images.shape[1:], dtype=images.dtype, name=images.name)
    views = Views(count, name="views")(inputs)
    outputs = keras_bridge.replay_graph(network, views, lambda layer: layer)
    mean = MeanOfViews(count, dtype="float32", name="mean_of_views")(outputs)
    return keras.Model(inputs, mean, name=network.name)


def _first_layers(
    options: Options, info: DatasetInfo
) -> tuple[keras.KerasTensor, list[layers.Layer]]:
    """Return the input of a network, and the layers that turn it into images."""
    first: list[layers.Layer] = []
    if options.synthetic_data == "device":
        inputs = keras.Input((1,), dtype="uint8", name="number")
        first.append(SyntheticImages(info.shape, options.eight_bit_transfer, name="synthetic"))
    elif options.eight_bit_transfer:
        inputs = keras.Input(info.shape, dtype="uint8", name="image")
        first.append(Decompress(name="eight_bit_transfer_decompression_layer"))
    else:
        inputs = keras.Input(info.shape, name="image")
    if options.random_erasing:
        # The argument `factor` is the probability for each image.
        first.append(
            layers.RandomErasing(options.random_erasing, value_range=BYTES, name="random_erasing")
        )
    if options.accelerator_side_preprocess:
        flip = info.flip and options.augment and options.flip == "random"
        first.append(Preprocess(info.normalisation, flip, name="preprocessing_layer"))
    return inputs, first


def recommended_splits(model: keras.Model, stages: int) -> list[str]:
    """Return the layers that split a model into stages of about the same number of parameters."""
    total, so_far = model.count_params(), 0
    splits: list[str] = []
    for layer in model.layers:
        so_far += layer.count_params()
        while len(splits) < stages - 1 and so_far * stages >= total * (len(splits) + 1):
            splits.append(layer.name)
    return list(dict.fromkeys(splits))


def adapt_layers(model: keras.Model, find_inputs: Callable[[], np.ndarray]) -> None:
    """Call `adapt` of each layer that has this method, with the inputs of that layer.

    `keras.layers.Normalization` is skipped, because in `keras.applications` its statistics are part
    of the weights.

    Args:
        model: functional model with one input; other models are not changed.
        find_inputs: function that returns some inputs of the model; called only if needed.
    """
    calls = keras_bridge.graph_calls(model, into_nested=True) or []
    places = [place for place, call in enumerate(calls) if _adapts(call.operation)]
    if not places:
        return
    tensors = keras_bridge.graph_input_tensors(model, find_inputs())
    run = keras_bridge.with_training(False)
    for place, call in enumerate(calls[: places[-1] + 1]):
        if place in places:
            call.operation.adapt(tensors[call.inputs[0]])
        call.run(tensors, run)


def _adapts(operation: keras.Operation) -> bool:
    return hasattr(operation, "adapt") and not isinstance(operation, layers.Normalization)
