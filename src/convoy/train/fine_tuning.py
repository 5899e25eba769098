"""Fine-tuning: initial weights from a file, and layers that are not trained."""

import warnings
from pathlib import Path

import keras
import numpy as np
from convoy.error_messages import first_line
from convoy.train.run_folder import ENDING
from convoy_command.parser import suggestion


def load_initial_weights(model: keras.Model, path: Path) -> str:
    """Load the weights of all layers whose weights in a file have the same shape.

    Args:
        model: the model that gets the weights.
        path: a `.keras` file, with layers matched by name; the weights of another run
            (`.weights.h5`), matched by position in the model; or weights of `keras.applications`
            (`.h5`), matched by name.

    Returns:
        A message for the user: the number of layers, and those that kept their random weights.

    Raises:
        ValueError: if the file cannot be read, or no layer has the same shape.
    """
    if not path.is_file():
        raise ValueError(f"--weights {path}: there is no such file. Pass its path.")
    layers = [layer for layer in model.layers if layer.weights]
    before = [layer.get_weights() for layer in layers]
    try:
        with warnings.catch_warnings():
            # Keras warns about each layer that does not match. The result lists these layers
            # instead.
            warnings.simplefilter("ignore")
            _load(model, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--weights {path} cannot be read: {first_line(error).rstrip('.')}. Pass a .keras, "
            ".weights.h5 or .h5 file."
        ) from None
    kept = [
        layer.name
        for layer, weights in zip(layers, before, strict=True)
        if all(map(np.array_equal, layer.get_weights(), weights))
    ]
    if len(kept) == len(layers):
        raise ValueError(
            f"--weights {path} has no weights for the layers of {model.name}. Pass the weights of "
            "a network with layers of the same shapes."
        )
    loaded = f"{len(layers) - len(kept)} of {len(layers)} layers have the weights of {path}"
    return f"{loaded}; random: {', '.join(kept)}" if kept else loaded


def _load(model: keras.Model, path: Path) -> None:
    if path.name.endswith(ENDING):
        model.load_weights(path, skip_mismatch=True)
        return
    if path.suffix == ".h5":
        model.load_weights(path, by_name=True, skip_mismatch=True)
        return
    found = {layer.name: layer for layer in keras.models.load_model(path, compile=False).layers}
    for layer in model.layers:
        weights = found[layer.name].get_weights() if layer.name in found else []
        if [value.shape for value in weights] == [value.shape for value in layer.weights]:
            layer.set_weights(weights)


def freeze(model: keras.Model, first_trained: str) -> None:
    """Exclude all layers before one from training.

    Batch normalisation in these layers uses and keeps its moving statistics.

    Args:
        model: the model.
        first_trained: name of the first layer that is trained.

    Raises:
        ValueError: if there is no such layer, or no layer before it has weights.
    """
    names = [layer.name for layer in model.layers]
    if first_trained not in names:
        near = suggestion(first_trained, names)
        last = "" if near != "." else f" Its last layers are {', '.join(names[-5:])}."
        raise ValueError(
            f"--freeze-until {first_trained}: {model.name} has no such layer{near}{last}"
        )
    frozen = model.layers[: names.index(first_trained)]
    if not any(layer.weights for layer in frozen):
        raise ValueError(
            f"--freeze-until {first_trained}: no layer before it has weights. Pass a later layer."
        )
    for layer in frozen:
        layer.trainable = False
