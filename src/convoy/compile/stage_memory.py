"""Memory of the devices of a pipeline, which hold the state of their stages between programs."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
from convoy import keras_bridge
from convoy.compile.analysis import CompiledProgram, ObservedRun
from convoy.engine.data.placement import tree_bytes
from convoy.pipeline.runner.training import TrainingRunner
from convoy.pipeline.runner.update import RankUpdate
from convoy.pipeline.simulation import peak_stash


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one device of each replica of a pipeline, in training.

    Attributes:
        device: number of the device in its replica.
        stages: the stages on it.
        state: weights, statistics, optimizer state and gradient accumulators.
        data: the data of a device call, if a stage reads it.
        residuals: maximum bytes that micro-batches in flight keep from the forward to the backward
            pass.
        working: temporary memory and results of the largest program.
        code: code of all programs.
    """

    device: int
    stages: tuple[int, ...]
    state: int
    data: int
    residuals: int
    working: int
    code: int

    @property
    def total_bytes(self) -> int:
        return self.state + self.data + self.residuals + self.working + self.code


def stage_memory(run: ObservedRun, programs: Sequence[CompiledProgram]) -> list[StageMemory]:
    """Return the memory of each device of a pipeline; empty if the run does not train a pipeline.

    Args:
        run: the run.
        programs: its compiled programs.
    """
    runner = run.runners.get("train")
    if not isinstance(runner, TrainingRunner):
        return []
    by_name = {program.name: program for program in programs if program.run is run}
    stage_programs = [p for made in runner.stage_programs for p in made.programs]
    residuals = peak_stash(runner.schedule, [p.residual_bytes for p in stage_programs])
    found = []
    for device, update in enumerate(runner.rank_updates):
        stages = tuple(s for s, rank in enumerate(runner.layout.mapping) if rank == device)
        prefixes = [f"stage {stage} " for stage in stages] + [f"device {device} "]
        own = [p for name, p in by_name.items() if name.startswith(tuple(prefixes))]
        found.append(
            StageMemory(
                device=device,
                stages=stages,
                state=_state_bytes(update),
                data=run.data_bytes if device in runner.placement.readers else 0,
                residuals=residuals[device],
                working=max((_working_bytes(program) for program in own), default=0),
                code=sum(program.memory["generated_code"] for program in own),
            )
        )
    return found


def _state_bytes(update: RankUpdate) -> int:
    variables = [*update.trainable, *update.statistics, *update.variables]
    accumulators = [
        jax.ShapeDtypeStruct(variable.shape, dtype)
        for variable, dtype in zip(update.trainable, update.dtypes, strict=True)
    ]
    return tree_bytes([*keras_bridge.values(variables), *accumulators])


def _working_bytes(program: CompiledProgram) -> int:
    memory = program.memory
    return memory["temp"] + memory["output"] - memory["alias"]
