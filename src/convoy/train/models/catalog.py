"""The catalog of networks by name."""

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import keras
from convoy.error_messages import first_line
from convoy.train.models.cifar_fast import cifar_fast
from convoy.train.models.cifar_resnet import cifar_resnet
from convoy.train.models.resnet import resnet
from convoy.train.models.small import mnist_cnn, toy_model
from convoy_command.parser import suggestion

MakeModel = Callable[[tuple[int, int, int], int], keras.Model]

_RESNETS = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}

MODELS: dict[str, MakeModel] = {
    "mnist_cnn": mnist_cnn,
    "cifar_fast": cifar_fast,
    "toy_model": toy_model,
    "toy_model_bn": partial(toy_model, normalise=True),
    **{f"cifar_resnet{6 * n + 2}": partial(cifar_resnet, blocks=n) for n in (1, 3, 5, 7, 9)},
    **{
        name: partial(resnet, blocks=blocks, bottleneck=bottleneck, name=name)
        for name, (blocks, bottleneck) in _RESNETS.items()
    },
}


def make_model(name: str, shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Return a network with initial weights.

    Args:
        name: one of `MODELS`; a function of `keras.applications`, in any case
            (`"efficientnetb0"`); or `"module:function"`, which is called with shape and classes.
        shape: height, width and channels of an image.
        classes: number of classes.

    Raises:
        ValueError: if there is no such network, or it cannot take such images.
    """
    make = find_model(name)
    try:
        model = make(shape, classes)
    except ValueError as error:
        reason = first_line(error).rstrip(".")
        raise ValueError(
            f"--model {name} cannot be made for images of shape {shape}: {reason}. "
            "Pass another --model or --dataset."
        ) from error
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"--model {name} returned {type(model).__name__}, not a keras.Model. Return one."
        )
    return model


def find_model(name: str) -> MakeModel:
    """Return the function that makes a network.

    Raises:
        ValueError: if there is no such network.
    """
    return _from_module(name) if ":" in name else MODELS.get(name) or _from_applications(name)


def _from_module(name: str) -> MakeModel:
    module_name, _, function = name.partition(":")
    # As with `python -m`, modules in the working directory can be imported.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"--model {name}: {error}. Pass a module in this folder, or an installed one."
        ) from None
    found = getattr(module, function, None)
    if found is None:
        near = suggestion(function, vars(module))
        raise ValueError(f"--model {name}: {module_name} has no {function!r}{near}")
    if not callable(found):
        raise ValueError(
            f"--model {name}: {function!r} is not a function. Pass one that returns a keras.Model."
        )
    return found


def _from_applications(name: str) -> MakeModel:
    functions = {
        key.lower(): value
        for key, value in vars(keras.applications).items()
        if inspect.isfunction(value)
    }
    if name.lower() not in functions:
        raise ValueError(
            f"{name!r} is not a model{suggestion(name.lower(), {**MODELS, **functions})} Pass "
            f"{', '.join(MODELS)}, a name in keras.applications (resnet50v2, efficientnetb0, ...), "
            "or module:function."
        )
    function = functions[name.lower()]

    def make(shape: tuple[int, int, int], classes: int) -> keras.Model:
        return function(weights=None, input_shape=shape, classes=classes)

    return make
