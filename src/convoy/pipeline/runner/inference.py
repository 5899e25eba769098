"""Evaluates and predicts in stages: micro-batches follow each other through the pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.cpu.dispatch import dummy_work
from convoy.engine.data.chunks import Chunk, fetcher
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import NULL_OBSERVER, Observer
from convoy.engine.program import output_bytes
from convoy.engine.state import Mode, Variables
from convoy.engine.step.replicate import Roles
from convoy.engine.step.step import Fetch
from convoy.pipeline.communication.messages import Mail
from convoy.pipeline.communication.transfer import move
from convoy.pipeline.options import Pipelining, stages_of_model
from convoy.pipeline.placement import PipelinePlacement
from convoy.pipeline.runner.layout import Layout, position
from convoy.pipeline.runner.metrics import metrics_of_replicas, total_metrics
from convoy.pipeline.runner.shapes import LOSS, Shapes, shapes_between
from convoy.pipeline.runner.stage_function import Body, Rest, fetched, make_body, make_prediction
from convoy.pipeline.runner.training import check_methods, with_operations
from convoy.pipeline.schedule import Action
from convoy.pipeline.schedules import generate

Arrays = list[jax.Array]

# Micro-batches that may be on their way for each stage: enough that none waits for Python.
IN_FLIGHT = 4


class ForwardPrograms:
    """Runs a model in stages without training it.

    Args:
        model: it has stages.
        config: how the work is divided.
        options: the pipeline.
        mode: `"evaluate"` or `"predict"`.
        observer: is told of every program.
    """

    def __init__(
        self,
        model: keras.Model,
        config: ExecutionConfig,
        options: Pipelining,
        mode: Mode,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self.model, self.config, self.mode, self.observer = model, config, mode, observer
        self.placement: PipelinePlacement = config.placement  # type: ignore[assignment]
        if mode == "evaluate":
            check_methods(model)
        self.variables = Variables(model, mode)
        self.roles = Roles.of(model, self.variables)
        self.compilation = keras_bridge.compilation(model)
        self.assignment = stages_of_model(model)
        mapping = options.schedule_for(model, config.accumulation.count).mapping
        self.layout = Layout(model, self.assignment or [], mapping, self.placement)
        self._programs: dict[tuple, tuple[list[Any], Shapes, Any]] = {}
        self._results = jax.jit(lambda metrics: keras_bridge.metric_results(model, metrics))
        self._running: list[Any] = []

    def still_fits(self) -> bool:
        """Return whether the model has the variables and stages that the programs were made for."""
        return (
            self.compilation is keras_bridge.compilation(self.model)
            and self.assignment == stages_of_model(self.model)
            and self.variables.are_those_of(self.model)
        )

    def place(self) -> None:
        """Move the variables to where their stages run."""
        self.layout.place(self.variables, {})

    def limit_outputs(self, example: Any, budget: int, steps_per_execution: int) -> int:
        """Choose how many steps' outputs a prediction keeps on the devices, and return it."""
        needed = output_bytes(self.model, self.variables.read(), example)
        return max(1, min(steps_per_execution, budget // max(1, needed)))

    def run(self, chunk: Chunk) -> Any:
        """Run a chunk's micro-batches.

        Returns:
            The values of the metrics, or for prediction the outputs as host arrays.
        """
        while len(self._running) > 1:
            jax.block_until_ready(self._running.pop(0))
        call = ForwardCall(self, chunk)
        call.run()
        metrics = call.finish()
        if self.mode == "predict":
            return call.joined_outputs()
        outcome = self._results(metrics)
        self._running.append(outcome)
        return outcome

    def programs(self, chunk: Chunk) -> tuple[list[Any], Shapes, Any]:
        """Return the program of every stage for chunks of this kind.

        If stages are in several processes, with what goes between them, and what comes out.
        """
        key = (chunk.layout, chunk.batch, chunk.sharded)
        if key not in self._programs:
            self._programs[key] = self._make_programs(chunk)
        return self._programs[key]

    def _make_programs(self, chunk: Chunk) -> tuple[list[Any], Shapes, Any]:
        replicas = self.placement.replicas if chunk.sharded else 1
        shares = replicas if self.config.reduction == "mean" else 1
        traced = with_operations(shares, replicas, self.placement.platform)
        fetch = fetcher(chunk, replicas, in_one_program=False)
        bodies = [self._body(number, replicas) for number in range(len(self.layout.stages))]
        programs = [
            self.observer.program(
                f"stage {number} {self.mode}", jax.jit(traced(_with_data(body, fetch)))
            )
            for number, body in enumerate(bodies)
        ]
        shapes: Shapes = {}
        outputs: Any = None
        if self.placement.crosses_processes:
            seen = bodies if self.mode == "predict" else bodies[:-1]
            shapes, outputs = shapes_between(self.layout, seen, chunk, replicas, traced)
        return programs, shapes, outputs

    def _body(self, number: int, replicas: int) -> Body:
        stages = self.layout.stages
        if self.mode == "predict":
            return make_prediction(self.model, stages, number)
        return make_body(self.model, stages, number, replicas, training=False)


def _with_data(body: Body, fetch: Fetch) -> Callable[..., Any]:
    def compute(trainable: Arrays, received: tuple, rest: Rest) -> Any:
        results, carried = body.compute(trainable, received, fetched(rest, fetch))
        return results, carried, dummy_work((trainable, received, rest))

    return compute


class ForwardCall:
    """One device call: all micro-batches of a chunk, through all stages."""

    def __init__(self, programs: ForwardPrograms, chunk: Chunk) -> None:
        self.own, self.chunk = programs, chunk
        self.layout = layout = programs.layout
        # A rest does not divide over replicas: the first one runs all of it. Where replicas are in
        # several processes, each does.
        every = chunk.sharded or programs.placement.crosses_processes
        self.replicas = layout.replicas if every else layout.replicas[:1]
        self.programs, shapes, self.outcome = programs.programs(chunk)
        self.mail = Mail(layout, shapes)
        self.unfinished: deque[Any] = deque()
        """What this process has started, where other processes have a part in it."""
        last = layout.last_column.devices
        self.outputs: dict[int, list[Any]] = {r: [] for r in self.replicas if r in last}
        self.values = layout.values_of_replicas(programs.variables, programs.roles.seeds)
        metrics = keras_bridge.values(programs.variables.parts.metrics)
        self.metrics = metrics_of_replicas(metrics, layout, chunk, programs.roles)
        self.no_loss = {
            r: jax.device_put(np.float32(0), device)
            for r, device in layout.columns[layout.mapping[0]].devices.items()
        }

    def run(self) -> None:
        """Start all micro-batches, and wait only where too many are on their way.

        Without a backward pass nothing else would hold back a first stage that is faster than the
        others, and what it computes would pile up.
        """
        layout = self.layout
        stages, count = len(layout.stages), self.chunk.micro_batches
        schedule = generate("gpipe", stages, count, layout.mapping, trains=False)
        order = sorted(schedule, key=lambda a: (a.micro_batch + a.stage, -a.stage))
        ended: deque[Any] = deque()
        for action in order:
            done = [self._do(action, replica) for replica in self.replicas]
            if action.stage == layout.last:
                ended.append(
                    [self._heard(loss, r) for r, loss in zip(self.replicas, done, strict=True)]
                )
                if len(ended) > IN_FLIGHT * stages:
                    jax.block_until_ready(ended.popleft())
        # Before processes agree on anything: to wait for others takes the thread that computes.
        jax.block_until_ready(list(self.unfinished))

    def _do(self, action: Action, replica: int) -> Any:
        """Carry out an action, or expect what it sends if it is another process's."""
        if self.layout.runs(action.stage, replica):
            return self._forward(action, replica)
        self.mail.expect(action, replica)
        return None

    def _heard(self, loss: jax.Array | None, replica: int) -> Any:
        """Let all processes of a replica know that it is through with a micro-batch."""
        source = self.layout.device(replica, self.layout.mapping[self.layout.last])
        # In its own process it is known already.
        row = reversed(self.layout.placement.rows[replica])
        targets = {device.process_index: device for device in row} | {source.process_index: source}
        values = None if loss is None else [loss]
        return [move(values, [LOSS], source, targets[process]) for process in sorted(targets)]

    def _forward(self, action: Action, replica: int) -> Any:
        layout, number, micro_batch = self.layout, action.stage, action.micro_batch
        stage, place = layout.stages[number], layout.mapping[number]
        last = number == layout.last
        values = self.values[replica]
        received = self.mail.receive(number, micro_batch, replica)
        loss = self.mail.loss(number, micro_batch, replica)
        rest = Rest(
            [values[id(v)] for v in stage.non_trainable],
            position(self.chunk, place, micro_batch, replica) if layout.reads[number] else (),
            self.metrics[replica] if last else [],
            self.no_loss[replica] if loss is None else loss,
        )
        trainable = [values[id(v)] for v in stage.trainable]
        (outputs, _), (new, metrics, loss), work = self.programs[number](trainable, received, rest)
        values |= {id(v): x for v, x in zip(stage.non_trainable, new, strict=True)}
        if layout.placement.crosses_processes:
            self.unfinished.append(work)
            if len(self.unfinished) > IN_FLIGHT * len(layout.stages):
                jax.block_until_ready(self.unfinished.popleft())
        if not last:
            self.mail.send(number, micro_batch, replica, outputs, loss)
        elif self.own.mode == "predict":
            for leaf in jax.tree.leaves(outputs):
                leaf.copy_to_host_async()
            self.outputs[replica].append(outputs)
        else:
            self.metrics[replica] = metrics
        return loss

    def joined_outputs(self) -> Any:
        """Return the outputs of all samples in their order, as host arrays."""
        replicas = list(self.outputs.values())
        if not self.chunk.sharded:
            replicas = replicas[:1]
        steps = [
            jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *parts)
            for parts in zip(*replicas, strict=True)
        ]
        placement = self.own.placement
        if placement.crosses_processes or (self.chunk.sharded and placement.spans_processes):
            return jax.tree.map(self._of_all_processes, self._stacked(steps))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *steps)

    def _stacked(self, steps: list[Any]) -> Any:
        """Put the outputs of all steps into one array each; zeros where there are none."""
        if steps:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
        count = self.chunk.micro_batches
        return jax.tree.map(lambda x: np.zeros((count, *x.shape), x.dtype), self.outcome)

    def _of_all_processes(self, steps: np.ndarray) -> np.ndarray:
        """Return the rows of all replicas, step by step."""
        last = self.layout.mapping[self.layout.last]
        rows = self.own.placement.rows if self.chunk.sharded else self.own.placement.rows[:1]
        sources = list(dict.fromkeys(row[last].process_index for row in rows))
        found = np.concatenate(list(distributed.gathered(steps)[sources]), axis=1)
        return found.reshape(-1, *found.shape[2:])

    def finish(self) -> Arrays:
        """Write what changed back to the variables, and return the metrics' values."""
        own, layout = self.own, self.layout
        for variable, is_seed in zip(
            own.variables.parts.non_trainable, own.roles.seeds, strict=True
        ):
            column = layout.column_of(variable)
            here = [replica for replica in self.replicas if replica in column.devices]
            if not here:
                continue
            values = [self.values[replica][id(variable)] for replica in here]
            if not is_seed and jnp.issubdtype(values[0].dtype, jnp.floating):
                value = sum(jax.device_put(v, column.first_device) for v in values) / len(values)
            elif is_seed:
                value = values[0] - layout.seed_offset(here[0], values[0])
            else:
                value = values[0]
            keras_bridge.assign([variable], [column.put(value)])
        totals = total_metrics(
            self.metrics, own.variables.parts.metrics, own.roles, layout, self.chunk
        )
        common = layout.common
        keras_bridge.assign(own.variables.parts.metrics, [common.put(total) for total in totals])
        return totals
