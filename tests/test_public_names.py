"""The public Python names and signatures, frozen in `golden/public_names.txt`."""

import enum
import importlib
import inspect
from collections.abc import Iterator

import convoy
import keras

MODULES = (
    "convoy",
    "convoy.cpu",
    "convoy.cross_replica",
    "convoy.data",
    "convoy.estimator",
    "convoy.layers",
    "convoy.optimizers",
    "convoy.pipeline",
)


def test_names_and_signatures_are_those_in_the_golden_file(frozen):
    lines = [line for module in MODULES for line in describe_module(module)]
    frozen("public_names", "\n".join([*lines, *describe_model()]))


def describe_module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    public = getattr(module, "__all__", None) or [
        key for key, value in vars(module).items() if getattr(value, "__module__", None) == name
    ]
    for key in sorted(public):
        yield from describe(f"{name}.{key}", getattr(module, key))


def describe_model() -> Iterator[str]:
    """Describe the methods that a model gains or that are replaced when it is prepared."""
    stock, prepared = (keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]) for _ in "ab")
    convoy.prepare(prepared)
    for key in sorted(set(vars(prepared)) - set(vars(stock))):
        if not key.startswith("_"):
            yield from describe(f"model.{key}", vars(prepared)[key])


def describe(name: str, value: object) -> Iterator[str]:
    if inspect.ismodule(value):
        return
    if inspect.isclass(value):
        yield name + signature(value)
        for key, member in sorted(members(value).items()):
            yield from describe(f"{name}.{key}", member)
    elif callable(value):
        yield name + signature(value)
    else:
        yield name


def members(cls: type) -> dict[str, object]:
    """Return the public members that are defined by classes of Convoy."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.split(".")[0] == "convoy":
            names = {key for key in {**vars(base), **annotations(base)} if not key.startswith("_")}
            found |= {key: inspect.getattr_static(cls, key, None) for key in names}
    return {
        key: value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        for key, value in found.items()
    }


def annotations(cls: type) -> dict[str, object]:
    return vars(cls).get("__annotations__", {})


def signature(function: object) -> str:
    """Return names, kinds and defaults of arguments, without types."""
    if isinstance(function, enum.EnumType):
        return ""  # differs between versions of Python
    try:
        found = inspect.signature(function)
    except ValueError:
        return ""
    empty = inspect.Parameter.empty
    parameters = [
        parameter.replace(annotation=empty, default=shown(parameter.default))
        for parameter in found.parameters.values()
    ]
    return str(found.replace(parameters=parameters, return_annotation=empty))


class Source:
    """A default whose address in memory is left out."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return getattr(self.value, "__qualname__", None) or type(self.value).__qualname__


def shown(default: object) -> object:
    return Source(default) if " at 0x" in repr(default) else default
