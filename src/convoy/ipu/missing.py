"""What to use instead of names that Graphcore's module has and this one has not."""

from __future__ import annotations

import difflib
import sys
from functools import partial
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

_PLAIN_KERAS = "Make a plain keras.Model or keras.Sequential inside of strategy.scope()."
_TUNED = "Set the attributes of an ipu.config.IPUConfig."
_PIPELINE = "Use ipu.keras.PipelineStage and the model's set_pipelining_options()."

INSTEAD = {
    "autoshard": "Use convoy.split(model, stages), or num_shards of an IPURunConfig.",
    "autoshard_cnn": "Use convoy.split(model, stages), or num_shards of an IPURunConfig.",
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
    "within_replica_ops": "A stage of a pipeline is on one device; nothing is left to exchange.",
    "Model": _PLAIN_KERAS,
    "Sequential": _PLAIN_KERAS,
    "PipelineModel": f"{_PLAIN_KERAS} {_PIPELINE}",
    "PipelineSequential": f"{_PLAIN_KERAS} {_PIPELINE}",
    "SequentialPipelineModel": f"{_PLAIN_KERAS} {_PIPELINE}",
    "create_ipu_config": _TUNED,
    "auto_select_ipus": _TUNED,
    "select_ipus": _TUNED,
    "IPUExtendedV1": "Use ipu.ipu_strategy.IPUStrategy.",
    "PopDistStrategy": "Use ipu.distributed.popdist_strategy.PopDistStrategy.",
    "export_dataset_to_file": "Use ipu.serving, or write the data set with NumPy.",
    "export_inputs_to_file": "Use ipu.serving, or write the inputs with NumPy.",
    "IPUIterator": "Pass the IPUInfeedQueue to loops.repeat().",
    "IPUOwnedIterator": "Pass the IPUInfeedQueue to loops.repeat().",
}


def advise(module: ModuleType) -> None:
    """Have a module and those in it say what to use instead of a name that they have not."""
    vars(module)["__getattr__"] = partial(_refuse, module)
    # With a path, even an empty one, Python takes it for a package, and asks the `Finder`.
    vars(module).setdefault("__path__", [])
    for inner in list(vars(module).values()):
        is_within = isinstance(inner, ModuleType) and inner.__name__.startswith(f"{__package__}.")
        if is_within and "__getattr__" not in vars(inner):
            advise(inner)


class Finder(MetaPathFinder):
    """Says the same where a name is imported: Python would leave the advice out."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        del path, target
        place, _, name = fullname.rpartition(".")
        package = sys.modules.get(place)
        if package and f"{place}.".startswith(f"{__package__}.") and not name.startswith("_"):
            raise ModuleNotFoundError(_message(package, name))


def _refuse(module: ModuleType, name: str) -> Any:
    raise AttributeError(_message(module, name))


def _message(module: ModuleType, name: str) -> str:
    return f"{module.__name__} has no attribute {name!r}. {_advice(module, name)}".rstrip()


def _advice(module: ModuleType, name: str) -> str:
    if name.startswith("_"):
        return ""
    if name in INSTEAD:
        return INSTEAD[name]
    if name.startswith("set_") and name.endswith("_options"):
        return _TUNED
    if "NestedModel" in name:
        return "get_pipeline_stage_assignment() returns one flat list of layers."
    offered = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    near = difflib.get_close_matches(name, offered, 1)
    if near:
        return f"Did you mean {near[0]}?"
    return "docs/porting.md lists what there is, and what to use for the rest."
