"""The error of a device that runs out of memory, with suggestions that reduce the memory."""

import re

import jax
from convoy.engine.execution_config import ExecutionConfig
from convoy.units import format_bytes

# "Out of memory while trying to allocate 34359738368 bytes", "Out of memory allocating 8 bytes",
# and on TPUs "Attempting to allocate 2.50G. That was not possible. There are 1.20G free."
_REQUEST = re.compile(r"allocat\w*\s+([\d.]+)\s*([KMGT]?)(?:iB|B| bytes)?\b", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class DeviceMemoryError(MemoryError):
    """A run that does not fit into the memory of a device."""


def explain(
    error: jax.errors.JaxRuntimeError, method: str, name: str, config: ExecutionConfig
) -> DeviceMemoryError | None:
    """Return an error with suggestions if a device ran out of memory; `None` for other errors.

    Args:
        error: the error.
        method: the method of the model that was called.
        name: the name of the model.
        config: the configuration of the run.
    """
    if "RESOURCE_EXHAUSTED" not in str(error):
        return None
    changes = "; ".join(memory_advice(method, config))
    return DeviceMemoryError(
        f"A device ran out of memory in {method}() of {name!r}{_request(str(error))}. Use one of "
        f"these: {changes}."
    )


def memory_advice(method: str, config: ExecutionConfig) -> list[str]:
    """Return changes to a run that reduce memory on a device, the smallest change first."""
    trains, is_pipeline = method in ("fit", "train_on_batch"), config.pipeline is not None
    found = ["a smaller batch_size"]
    if trains:
        found[0] += ", with a larger gradient_accumulation for the same global batch"
    if trains and is_pipeline:
        found.append("set_pipelining_options(activation_checkpointing=True)")
    elif trains and config.activation_checkpointing is None:
        found.append("Strategy(activation_checkpointing='auto')")
    if config.replicas > 1 and not is_pipeline and config.shard != "weights":
        found.append("Strategy(shard='weights')")
    found.append("a smaller Strategy(data_budget=...) or steps_per_execution")
    if trains:
        found.append(f"{'more' if is_pipeline else 'pipeline'} stages (convoy.split)")
    return found


def _request(message: str) -> str:
    found = _REQUEST.search(message)
    if found is None:
        return ""
    size = float(found[1]) * _UNITS[found[2].upper()]
    return f", where {format_bytes(size)} were requested"
