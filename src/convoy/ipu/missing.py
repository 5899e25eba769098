"""Errors for names of Graphcore's module that are not available here, with their replacement."""

import difflib
import sys
from functools import partial
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import NoReturn

_PLAIN_KERAS = "Make a plain keras.Model or keras.Sequential inside of strategy.scope()."
_IPU_CONFIG = "Set the attributes of an ipu.config.IPUConfig."
_SPLIT = "Use convoy.split(model, stages), or num_shards of an IPURunConfig."
_PIPELINE = "Use ipu.keras.PipelineStage and the model's set_pipelining_options()."

INSTEAD = {
    "autoshard": _SPLIT,
    "autoshard_cnn": _SPLIT,
    "application_compile_op": "Use ipu.serving.",
    "control_flow_ops": "Use jax.lax.optimization_barrier for barrier().",
    "custom_ops": "Write a JAX function, or a foreign call by jax.ffi.",
    "embedded_runtime": "Use ipu.serving.",
    "embedding_ops": "Use keras.layers.Embedding.",
    "f8_ops": "Use a dtype policy of Keras, or Strategy(precision=...).",
    "functional_ops": "Call the function: XLA decides what code is shared.",
    "horovod": "Use ipu.distributed.",
    "image_ops": "Use keras.layers.Rescaling or keras.layers.Normalization.",
    "internal_ops": "Use jax.debug.print for print_tensor().",
    "math_ops": "Use keras.ops.matmul for serialized_matmul().",
    "nn_ops": "Use keras.ops, for example keras.ops.gelu.",
    "normalization_ops": "Use keras.layers.GroupNormalization or LayerNormalization.",
    "sharding": "Use ipu.keras.PipelineStage.",
    "slicing_ops": "Use keras.ops.slice.",
    "statistics_ops": "Use jax.numpy.histogram.",
    "within_replica_ops": "Leave it out: a pipeline stage is on one device.",
    "Model": _PLAIN_KERAS,
    "Sequential": _PLAIN_KERAS,
    "PipelineModel": f"{_PLAIN_KERAS} {_PIPELINE}",
    "PipelineSequential": f"{_PLAIN_KERAS} {_PIPELINE}",
    "SequentialPipelineModel": f"{_PLAIN_KERAS} {_PIPELINE}",
    "create_ipu_config": _IPU_CONFIG,
    "auto_select_ipus": _IPU_CONFIG,
    "select_ipus": _IPU_CONFIG,
    "IPUExtendedV1": "Use ipu.ipu_strategy.IPUStrategy.",
    "PopDistStrategy": "Use ipu.distributed.popdist_strategy.PopDistStrategy.",
    "export_dataset_to_file": "Use ipu.serving, or write the dataset with NumPy.",
    "export_inputs_to_file": "Use ipu.serving, or write the inputs with NumPy.",
    "IPUIterator": "Pass the IPUInfeedQueue to loops.repeat().",
    "IPUOwnedIterator": "Pass the IPUInfeedQueue to loops.repeat().",
}


def advise(module: ModuleType) -> None:
    """Make a module and its submodules name the replacement of a missing attribute."""
    vars(module)["__getattr__"] = partial(_raise, module)
    # Python asks the `Finder` only about packages; a module with a path, even empty, is one.
    vars(module).setdefault("__path__", [])
    for inner in list(vars(module).values()):
        is_within = isinstance(inner, ModuleType) and inner.__name__.startswith(f"{__package__}.")
        if is_within and "__getattr__" not in vars(inner):
            advise(inner)


class Finder(MetaPathFinder):
    """Raises the same error for imports, where Python would leave out the replacement."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        parent, _, name = fullname.rpartition(".")
        package = sys.modules.get(parent)
        if package and f"{parent}.".startswith(f"{__package__}.") and not name.startswith("_"):
            raise ModuleNotFoundError(_message(package, name))


def _raise(module: ModuleType, name: str) -> NoReturn:
    raise AttributeError(_message(module, name))


def _message(module: ModuleType, name: str) -> str:
    return f"{module.__name__} has no attribute {name!r}. {_advice(module, name)}".rstrip()


def _advice(module: ModuleType, name: str) -> str:
    if name.startswith("_"):
        return ""
    if name in INSTEAD:
        return INSTEAD[name]
    if name.startswith("set_") and name.endswith("_options"):
        return _IPU_CONFIG
    if "NestedModel" in name:
        return "get_pipeline_stage_assignment() returns one flat list of layers."
    offered = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    near = difflib.get_close_matches(name, offered, 1)
    if near:
        return f"Did you mean {near[0]}?"
    return "docs/porting.md lists the names that are available, and replacements for others."
