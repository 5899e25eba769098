"""Evaluation and prediction in pipeline stages."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
from convoy import distributed, keras_bridge
from convoy.cpu.dispatch import dummy_work
from convoy.engine.chunk_runner import Outcome
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.local_batch import Fetch
from convoy.engine.data.placement import device_put
from convoy.engine.state import Mode
from convoy.pipeline.communication import LOSS, move
from convoy.pipeline.device_layout import DeviceLayout
from convoy.pipeline.runner.base import PipelineCall, PipelineRunner, StagePrograms
from convoy.pipeline.runner.stage_forward import (
    Computed,
    Received,
    StageFunction,
    StageInputs,
    Transform,
)
from convoy.pipeline.schedule import Action
from convoy.pipeline.schedules import DEFAULT, generate
from convoy.types import Arrays, PyTree

# Micro-batches that may be in flight per stage: enough that no device waits for Python.
IN_FLIGHT = 4


class InferenceRunner(PipelineRunner[PyTree]):
    """Evaluates a model in pipeline stages, or predicts with it."""

    def run_call(self, chunk: Chunk) -> Outcome:
        stage_programs = self.programs_for(chunk)
        call = InferenceCall(self.layout, chunk, stage_programs, self.mode)
        call.run()
        metrics = call.finish()
        return call.outputs() if self.mode == "predict" else self.metric_results(metrics)

    def make_program(
        self, number: int, function: StageFunction, fetch: Fetch, transform: Transform, chunk: Chunk
    ) -> PyTree:
        del chunk

        def compute(
            trainable: Arrays, received: Received, inputs: StageInputs
        ) -> tuple[Computed, jax.Array]:
            results = function(trainable, received, inputs.with_batch(fetch))
            return results, dummy_work((trainable, received, inputs))

        return self.observer.program(f"stage {number} {self.mode}", jax.jit(transform(compute)))


class InferenceCall(PipelineCall):
    """One device call: all micro-batches of a chunk, through all stages.

    Args:
        layout, chunk: see `PipelineCall`.
        stage_programs: programs of all stages.
        mode: `"evaluate"` or `"predict"`.
    """

    def __init__(
        self,
        layout: DeviceLayout,
        chunk: Chunk,
        stage_programs: StagePrograms[PyTree],
        mode: Mode,
    ) -> None:
        # An incomplete batch does not divide over replicas, so the first one runs all of it. If the
        # stages of a replica are in several processes, every replica does.
        every = chunk.sharded or layout.placement.crosses_processes
        replicas = layout.replicas if every else layout.replicas[:1]
        super().__init__(layout, chunk, replicas, stage_programs.shapes)
        self.programs, self.output_shapes = stage_programs.programs, stage_programs.outputs
        self.mode = mode
        self._unfinished: deque[jax.Array] = deque()
        """Results of dispatched programs, if other processes take part."""
        last = layout.last_group.devices
        self._outputs: dict[int, list[PyTree]] = {r: [] for r in self.replicas if r in last}

    def run(self) -> None:
        """Dispatch all micro-batches, and wait only if too many are in flight.

        Without a backward pass, nothing else limits a first stage that is faster than the others,
        and its outputs would accumulate.
        """
        # Actions are dispatched tick by tick, and within a tick the last stage first, so that
        # micro-batches leave the pipeline before new ones enter it:
        #
        #     tick       0   1   2   3
        #     stage 0    F0  F1  F2  F3         dispatched   0F0
        #     stage 1    .   F0  F1  F2                      1F0 0F1
        #     stage 2    .   .   F0  F1                      2F0 1F1 0F2
        layout = self.layout
        stages, count = len(layout.stages), self.chunk.micro_batches
        schedule = generate(DEFAULT, stages, count, layout.mapping, trains=False)
        ended: deque[PyTree] = deque()
        for action in sorted(schedule, key=lambda a: (a.micro_batch + a.stage, -a.stage)):
            losses = [self.dispatch(action, replica) for replica in self.replicas]
            if action.stage == layout.last:
                pairs = zip(losses, self.replicas, strict=True)
                ended.append([self._announce(loss, replica) for loss, replica in pairs])
                if len(ended) > IN_FLIGHT * stages:
                    jax.block_until_ready(ended.popleft())
        # Before a collective call of the processes, which would block the thread that computes.
        jax.block_until_ready(list(self._unfinished))

    def _announce(self, loss: jax.Array | None, replica: int) -> list[list[jax.Array]]:
        """Send the loss to all processes of a replica, to signal the end of a micro-batch."""
        source = self.layout.device(replica, self.layout.mapping[self.layout.last])
        # In the sending process, the loss is not moved.
        row = reversed(self.layout.placement.rows[replica])
        targets = {device.process_index: device for device in row} | {source.process_index: source}
        values = None if loss is None else [loss]
        return [move(values, [LOSS], source, targets[process]) for process in sorted(targets)]

    def run_action(self, action: Action, replica: int) -> jax.Array:
        stage, micro_batch = action.stage, action.micro_batch
        arguments = self.forward_arguments(action, replica, micro_batch)
        ((outputs, _), (new, metrics, loss)), work = self.programs[stage](*arguments)
        self.store(stage, replica, new, metrics)
        if self.layout.placement.crosses_processes:
            self._unfinished.append(work)
            if len(self._unfinished) > IN_FLIGHT * len(self.layout.stages):
                jax.block_until_ready(self._unfinished.popleft())
        if stage != self.layout.last:
            self.communication.send_forward(stage, micro_batch, replica, outputs, loss)
        elif self.mode == "predict":
            for leaf in jax.tree.leaves(outputs):
                leaf.copy_to_host_async()
            self._outputs[replica].append(outputs)
        return loss

    def outputs(self) -> PyTree:
        """Return the outputs of all samples in order, as host arrays."""
        replicas = list(self._outputs.values())
        if not self.chunk.sharded:
            replicas = replicas[:1]
        steps = [
            jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *shards)
            for shards in zip(*replicas, strict=True)
        ]
        placement = self.layout.placement
        if placement.crosses_processes or (self.chunk.sharded and placement.spans_processes):
            return jax.tree.map(self._from_all_processes, self._stacked(steps))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *steps)

    def _stacked(self, steps: list[PyTree]) -> PyTree:
        """Stack the outputs of all steps; zeros if this process has none."""
        if steps:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
        count = self.chunk.micro_batches
        return jax.tree.map(lambda x: np.zeros((count, *x.shape), x.dtype), self.output_shapes)

    def _from_all_processes(self, steps: np.ndarray) -> np.ndarray:
        """Return the outputs of all replicas, step by step."""
        last = self.layout.mapping[self.layout.last]
        rows = self.layout.placement.rows if self.chunk.sharded else self.layout.placement.rows[:1]
        sources = list(dict.fromkeys(row[last].process_index for row in rows))
        found = np.concatenate(list(distributed.gathered(steps)[sources]), axis=1)
        return found.reshape(-1, *found.shape[2:])

    def finish(self) -> Arrays:
        """Assign the values that have changed to their variables, and return the metrics."""
        non_trainable = self.layout.variables.parts.non_trainable
        for variable, is_seed in zip(non_trainable, self.layout.roles.seeds, strict=True):
            group = self.layout.group_of(variable)
            local = [replica for replica in self.replicas if replica in group.devices]
            if not local:
                continue
            value, *others = (self.values[replica][id(variable)] for replica in local)
            if is_seed:
                value = self.without_seed_offset(local[0], value)
            elif jnp.issubdtype(value.dtype, jnp.floating):
                moved = (device_put(other, group.first_device) for other in others)
                value = sum(moved, device_put(value, group.first_device)) / len(local)
            keras_bridge.assign([variable], [group.put(value)])
        return self.write_metrics()
