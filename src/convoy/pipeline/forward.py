"""Evaluates and predicts in stages: micro-batches follow each other through the pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import keras_bridge, processes
from convoy.engine.check import check_losses
from convoy.engine.feed import Chunk, fetcher
from convoy.engine.plan import Plan
from convoy.engine.program import output_bytes
from convoy.engine.replicate import Roles
from convoy.engine.state import Mode, Variables
from convoy.engine.step import Fetch
from convoy.engine.watch import NOBODY, Watcher
from convoy.pipeline.body import Body, Rest, fetched, make_body, make_prediction
from convoy.pipeline.generate import generate
from convoy.pipeline.layout import Column, Layout, Mail, position
from convoy.pipeline.options import Pipelining, stages_of_model
from convoy.pipeline.placement import PipelinePlacement
from convoy.pipeline.run import check_methods, total_metrics, with_operations
from convoy.pipeline.schedule import Action

Arrays = list[jax.Array]

# Micro-batches that may be on their way for each stage: enough that none waits for Python.
IN_FLIGHT = 4


class ForwardPrograms:
    """Runs a model in stages without training it.

    Args:
        model: it has stages.
        plan: how the work is divided.
        options: the pipeline.
        mode: `"evaluate"` or `"predict"`.
        watcher: is told of every program.
    """

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        options: Pipelining,
        mode: Mode,
        watcher: Watcher = NOBODY,
    ) -> None:
        self.model, self.plan, self.mode, self.watcher = model, plan, mode, watcher
        self.placement: PipelinePlacement = plan.placement  # type: ignore[assignment]
        if mode == "evaluate":
            check_methods(model)
            check_losses(model, self.placement.replicas)
        self.variables = Variables(model, mode)
        self.roles = Roles.of(model, self.variables)
        self.compilation = keras_bridge.compilation(model)
        self.assignment = stages_of_model(model)
        mapping = options.plan_for(model, plan.accumulation.count).mapping
        self.layout = Layout(model, self.assignment or [], mapping, self.placement)
        self._programs: dict[tuple, list[Any]] = {}
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

    def limit_outputs(self, example: Any, budget: int, most: int) -> int:
        """Choose how many steps' outputs a prediction keeps on the devices, and return it."""
        needed = output_bytes(self.model, self.variables.read(), example)
        return max(1, min(most, budget // max(1, needed)))

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

    def programs(self, chunk: Chunk) -> list[Any]:
        """Return the program of every stage for chunks of this kind."""
        key = (chunk.layout, chunk.batch, chunk.spread)
        if key not in self._programs:
            replicas = self.placement.replicas if chunk.spread else 1
            shares = replicas if self.plan.reduction == "mean" else 1
            traced = with_operations(shares, self.placement.platform)
            fetch = fetcher(chunk, replicas, in_one_program=False)
            stages = self.layout.stages
            if self.mode == "predict":
                bodies = [make_prediction(self.model, stages, n) for n in range(len(stages))]
            else:
                bodies = [
                    make_body(self.model, stages, n, training=False) for n in range(len(stages))
                ]
            self._programs[key] = [
                self.watcher.program(
                    f"stage {number} {self.mode}", jax.jit(traced(_with_data(body, fetch)))
                )
                for number, body in enumerate(bodies)
            ]
        return self._programs[key]


def _with_data(body: Body, fetch: Fetch) -> Callable[..., Any]:
    def compute(trainable: Arrays, received: tuple, rest: Rest) -> Any:
        return body.compute(trainable, received, fetched(rest, fetch))

    return compute


class ForwardCall:
    """One device call: all micro-batches of a chunk, through all stages."""

    def __init__(self, programs: ForwardPrograms, chunk: Chunk) -> None:
        self.own, self.chunk = programs, chunk
        self.layout = layout = programs.layout
        # A rest does not divide over replicas: the first one runs all of it.
        self.replicas = layout.replicas if chunk.spread else layout.replicas[:1]
        self.programs = programs.programs(chunk)
        self.mail = Mail(layout)
        self.losses: dict[tuple[int, int], jax.Array] = {}
        self.outputs: list[list[Any]] = [[] for _ in self.replicas]
        parts = programs.variables.parts
        self.values: list[dict[int, jax.Array]] = [{} for _ in layout.replicas]
        for variable in [*parts.trainable, *parts.non_trainable]:
            self._spread(variable)
        self._diverge()
        self.no_loss = [
            jax.device_put(np.float32(0), layout.device(r, layout.mapping[0]))
            for r in self.replicas
        ]

    def _column(self, variable: keras.Variable) -> Column:
        return self.layout.columns[self.layout.home(variable)]

    def _spread(self, variable: keras.Variable) -> None:
        split = self._column(variable).split(keras_bridge.values([variable])[0])
        for values, value in zip(self.values, split, strict=True):
            values[id(variable)] = value

    def _diverge(self) -> None:
        """Give each replica its own random stream, and metrics that start from nothing."""
        own = self.own
        for variable, is_seed in zip(
            own.variables.parts.non_trainable, own.roles.seeds, strict=True
        ):
            for replica in self.replicas if is_seed else ():
                value = self.values[replica][id(variable)]
                self.values[replica][id(variable)] = value + self.layout.seed_offset(replica, value)
        last = self.layout.last_column
        metrics = [last.split(x) for x in keras_bridge.values(own.variables.parts.metrics)]
        self.metrics: list[Arrays] = [[m[replica] for m in metrics] for replica in self.replicas]
        for replica in self.layout.beginning_anew(self.chunk):
            self.metrics[replica] = [
                jnp.zeros_like(value) if aggregation == "sum" else value
                for value, aggregation in zip(
                    self.metrics[replica], own.roles.aggregations, strict=True
                )
            ]

    def run(self) -> None:
        """Start all micro-batches, and wait only where too many are on their way.

        Without a backward pass nothing else would hold back a first stage that is faster than the
        others, and what it computes would pile up.
        """
        layout = self.layout
        stages, count = len(layout.stages), self.chunk.micro_batches
        schedule = generate("grouped", stages, count, layout.mapping, trains=False)
        order = sorted(schedule, key=lambda a: (a.micro_batch + a.stage, -a.stage))
        ended: deque[Any] = deque()
        for action in order:
            for replica in self.replicas:
                done = self._forward(action, replica)
            if action.stage == layout.last:
                ended.append(done)
                if len(ended) > IN_FLIGHT * stages:
                    jax.block_until_ready(ended.popleft())

    def _forward(self, action: Action, replica: int) -> Any:
        layout, number, micro_batch = self.layout, action.stage, action.micro_batch
        stage, place = layout.stages[number], layout.mapping[number]
        last = number == layout.last
        values = self.values[replica]
        received = self.mail.receive(number, micro_batch, replica)
        loss = self.losses.pop((replica, micro_batch), None)
        where = self._position(place, micro_batch, replica) if layout.reads[number] else ()
        rest = Rest(
            [values[id(v)] for v in stage.non_trainable],
            where,
            self.metrics[replica] if last else [],
            jax.device_put(
                self.no_loss[replica] if loss is None else loss, layout.device(replica, place)
            ),
        )
        trainable = [values[id(v)] for v in stage.trainable]
        (outputs, _), (new, metrics, loss) = self.programs[number](trainable, received, rest)
        values |= {id(v): x for v, x in zip(stage.non_trainable, new, strict=True)}
        if not last:
            self.losses[replica, micro_batch] = loss
            self.mail.send(number, micro_batch, replica, outputs)
            return loss
        if self.own.mode == "predict":
            for leaf in jax.tree.leaves(outputs):
                leaf.copy_to_host_async()
            self.outputs[replica].append(outputs)
        else:
            self.metrics[replica] = metrics
        return loss

    def _position(self, place: int, micro_batch: int, replica: int) -> tuple:
        return position(self.layout, self.chunk, place, micro_batch, replica)

    def joined_outputs(self) -> Any:
        """Return the outputs of all samples in their order, as host arrays."""
        steps = [
            jax.tree.map(lambda *leaves: np.concatenate([np.asarray(x) for x in leaves]), *parts)
            for parts in zip(*self.outputs, strict=True)
        ]
        if self.chunk.spread and self.own.placement.spans_processes:
            steps = [jax.tree.map(processes.joined, step) for step in steps]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *steps)

    def finish(self) -> Arrays:
        """Write what changed back to the variables, and return the metrics' values."""
        own, layout = self.own, self.layout
        for variable, is_seed in zip(
            own.variables.parts.non_trainable, own.roles.seeds, strict=True
        ):
            values = [self.values[replica][id(variable)] for replica in self.replicas]
            column = self._column(variable)
            if not is_seed and jnp.issubdtype(values[0].dtype, jnp.floating):
                value = sum(jax.device_put(v, column.devices[0]) for v in values) / len(values)
            elif is_seed:
                value = values[0] - layout.seed_offset(0, values[0])
            else:
                value = values[0]
            keras_bridge.assign([variable], [column.put(value)])
        totals = total_metrics(self.metrics, own.roles, layout, spread=self.chunk.spread)
        last = layout.last_column
        keras_bridge.assign(own.variables.parts.metrics, [last.put(total) for total in totals])
        return totals
