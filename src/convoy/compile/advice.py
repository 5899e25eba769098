"""Advice for programs that do not fit into the memory of a device."""

from __future__ import annotations

from math import ceil

from convoy.compile.observed_run import ObservedRun

# Memory that is left free, as temporary memory does not shrink exactly with the batch.
MARGIN = 0.9


def advise(needed: int, available: int, state: int, run: ObservedRun) -> list[str]:
    """Return changes after which a run should fit, the smallest one first.

    Args:
        needed: bytes that a device would need.
        available: bytes that it has.
        state: bytes of weights, optimizer state and statistics among those that are needed.
        run: the run.
    """
    config, is_pipeline = run.config, run.config.pipeline is not None
    found = []
    local = run.batch // config.replicas if run.batch else 0
    room = available * MARGIN - state
    if local > 1 and room > 0:
        fitting = int(local * room / max(1, needed - state))
        if fitting >= 1:
            smaller = 1 << (min(fitting, local - 1).bit_length() - 1)
            steps = config.gradient_accumulation * ceil(local / smaller)
            found.append(
                f"a micro-batch of {smaller} instead of {local} "
                f"(--micro-batch-size {smaller}, batch_size={smaller}); gradient accumulation over "
                f"{steps} micro-batches keeps the global batch"
            )
    if run.name == "fit" and room > 0 and config.activation_checkpointing is None:
        how = (
            "set_pipelining_options(activation_checkpointing=True)"
            if is_pipeline
            else 'Strategy(activation_checkpointing="auto")'
        )
        found.append(f"activation checkpointing: {how}")
    if (
        run.name == "fit"
        and config.replicas > 1
        and not is_pipeline
        and not config.shard_optimizer_state
        and state > available // 4
    ):
        found.append("optimizer state sharded over replicas: Strategy(shard_optimizer_state=True)")
    stages = ceil(needed / (available * MARGIN))
    if run.name == "fit":
        found.append(
            f"{'more' if is_pipeline else f'at least {stages}'} pipeline stages "
            f"(--pipeline-splits auto {stages}, convoy.split(model, {stages}))"
        )
    return found
