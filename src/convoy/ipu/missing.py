"""What to use instead of names that Graphcore's module has and this one has not."""

from __future__ import annotations

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
    "pipeline": _PIPELINE,
    "recomputation_checkpoint": "Use Strategy(remat=...) of convoy.",
    "IPUIterator": "Pass the IPUInfeedQueue to loops.repeat().",
    "IPUOwnedIterator": "Pass the IPUInfeedQueue to loops.repeat().",
}


def error(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module has not."""
    advice = INSTEAD.get(name)
    if advice is None and name.startswith("set_") and name.endswith("_options"):
        advice = _TUNED
    if advice is None and "NestedModel" in name:
        advice = "get_pipeline_stage_assignment() returns one flat list of layers."
    if advice is None and not name.startswith("_"):
        advice = "docs/porting.md lists what there is, and what to use for the rest."
    return AttributeError(f"convoy.{module} has no attribute {name!r}. {advice or ''}".rstrip())
