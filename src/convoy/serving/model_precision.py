"""Conversion of a model to another dtype policy, with the same weights."""

import tempfile
from pathlib import Path
from typing import Any

import keras
from convoy import keras_bridge
from convoy.precision import PRECISIONS, Precision

FLOAT32 = "float32"


def policies_of(model: keras.Model) -> list[str]:
    """Return the names of the dtype policies that a model computes in.

    In a model with layers in 16 bits, layers in float32 are exceptions, such as the last one, and
    are left out.
    """
    found = keras_bridge.policies(model)
    return sorted(found - {FLOAT32}) or [FLOAT32]


def convert(model: keras.Model, precision: Precision) -> keras.Model:
    """Return a copy of a model in another precision, with float32 outputs.

    The copy is the same as if the model had been created under this Keras policy, except for the
    output layers. They compute in float32, because in 16 bits several classes often get the same
    score.

    Args:
        model: a functional model. It is not changed.
        precision: the precision of the copy.

    Raises:
        ValueError: if a layer cannot be created again from its configuration.
    """
    sources = set(policies_of(model))
    if sources != {precision.policy}:
        model = _copy(model, precision, sources)
    outputs = keras.tree.map_structure(_as_float32, model.output)
    return keras.Model(model.input, outputs, name=model.name)


def _copy(model: keras.Model, precision: Precision, sources: set[str]) -> keras.Model:
    last_layers = _last_layers(model)

    def copy_layer(layer: keras.Operation) -> keras.Operation:
        target = FLOAT32 if id(layer) in last_layers else precision.policy
        config = _with_policy(layer.get_config(), sources & set(PRECISIONS), target)
        return type(layer).from_config(config)

    with precision.scope():
        try:
            copied = keras.models.clone_model(model, clone_function=copy_layer, recursive=True)
        except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(
                f"{model.name!r} cannot be converted to precision {precision.policy!r}, because "
                f"a layer cannot be created again: {reason}. Create the model under this policy "
                "(convoy.Strategy(precision=...).scope()), and load its weights."
            ) from error
    # Unlike `set_weights`, this also restores values that layers derive from their weights.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.weights.h5"
        model.save_weights(file)
        copied.load_weights(file)
    return copied


def _last_layers(model: keras.Model) -> set[int]:
    """Return the ids of the layers that return a model's outputs, also inside nested models."""
    outputs, found = set(keras_bridge.graph_outputs(model)), set()
    for call in keras_bridge.graph_calls(model) or ():
        if outputs.isdisjoint(call.outputs):
            continue
        nested = call.operation
        if isinstance(nested, keras.Model) and keras_bridge.graph_calls(nested):
            found |= _last_layers(nested)
        else:
            found.add(id(nested))
    return found


def _with_policy(config: Any, sources: set[str], target: str) -> Any:
    """Replace dtype policies in a layer's configuration, also those of layers inside of it."""
    if isinstance(config, dict):
        if config.get("class_name") == "DTypePolicy" and config["config"]["name"] in sources:
            return config | {"config": config["config"] | {"name": target}}
        return {key: _with_policy(value, sources, target) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return type(config)(_with_policy(value, sources, target) for value in config)
    return config


def _as_float32(output: keras.KerasTensor) -> keras.KerasTensor:
    if output.dtype in ("float16", "bfloat16"):
        return keras.layers.Activation("linear", dtype=FLOAT32)(output)
    return output
