"""Carries out a schedule: one program for each stage and kind of action, on its own devices.

Python only starts programs and transfers, in an order in which everything they need has been
started before; the devices run after it at their own pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import cpu, keras_bridge, processes
from convoy.engine import mapping, numerics
from convoy.engine.check import check_losses
from convoy.engine.feed import Chunk, fetcher
from convoy.engine.plan import Plan
from convoy.engine.replicate import Roles
from convoy.engine.state import Variables
from convoy.engine.watch import NOBODY, Watcher
from convoy.engine.whole_batch import WholeBatch
from convoy.pipeline.body import Rest, make_body
from convoy.pipeline.layout import Column, Layout, Mail, position
from convoy.pipeline.options import Pipelining, stages_of_model
from convoy.pipeline.placement import PipelinePlacement
from convoy.pipeline.record import Recorder
from convoy.pipeline.schedule import Kind, Schedule
from convoy.pipeline.simulate import Timeline, simulate
from convoy.pipeline.stage_program import Counts, StageProgram
from convoy.pipeline.update import DeviceUpdate, advance, check_optimizer

Arrays = list[jax.Array]


class PipelinePrograms:
    """Trains a model in stages; what `engine.program.Programs` is for one that is whole."""

    def __init__(
        self,
        model: keras.Model,
        plan: Plan,
        options: Pipelining,
        watcher: Watcher = NOBODY,
    ) -> None:
        self.model, self.plan, self.options, self.watcher = model, plan, options, watcher
        self.placement: PipelinePlacement = plan.placement  # type: ignore[assignment]
        check_model(model, plan)
        self.variables = Variables(model, "train")
        self.roles = Roles.of(model, self.variables)
        self.compilation = keras_bridge.compilation(model)
        self.assignment = stages_of_model(model)
        self.schedule = options.plan_for(model, plan.accumulation.count)
        self.layout = Layout(model, self.assignment or [], self.schedule.mapping, self.placement)
        self.numerics = numerics.of(model)
        parts = self.variables.parts
        self.trainable = self.layout.own(parts.trainable)
        self.statistics = self.layout.own(parts.non_trainable)
        optimizers = keras_bridge.divided_optimizer(
            model.optimizer, self.trainable, global_clipnorm=None
        )
        self.updates = [
            DeviceUpdate(model, trainable, optimizer, slots, column.mesh, plan)
            for trainable, (optimizer, slots), column in zip(
                self.trainable, optimizers, self.layout.columns, strict=True
            )
        ]
        for place, update in enumerate(self.updates):
            update.reduce = watcher.program(f"device {place} reduce", update.reduce)
            update.apply = watcher.program(f"device {place} update", update.apply)
        self.advance = advance(self.numerics.settings)
        self.alone = False
        """Whether a recording is made with every action by itself."""
        self.timeline: Timeline | None = None
        """Of the last weight update, if it was recorded."""
        self._programs: dict[tuple, list[StageProgram]] = {}
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
        slots: dict[int, int] = {}
        for place, update in enumerate(self.updates):
            for variable in update.variables:
                slots.setdefault(id(variable), place)
        self.layout.place(self.variables, slots)

    def run(self, chunk: Chunk) -> Any:
        """Run a chunk's weight updates; the variables then hold their outcome."""
        while len(self._running) > 1:
            jax.block_until_ready(self._running.pop(0))
        call = Call(self, chunk)
        call.run()
        metrics = call.finish()
        outcome = self._results(metrics) | self.numerics.logs(call.numerics)
        self._running.append(outcome)
        return outcome

    def recorder(self, schedule: Schedule) -> Recorder | None:
        if not self.options.record:
            return None
        return Recorder(schedule, len(self.layout.replicas), alone=self.alone)

    def stage_programs(self, chunk: Chunk) -> list[StageProgram]:
        """Return the programs of all stages for chunks of this kind."""
        key = (chunk.layout, chunk.batch, chunk.spread)
        if key not in self._programs:
            self._programs[key] = self._make_programs(chunk)
        return self._programs[key]

    def _make_programs(self, chunk: Chunk) -> list[StageProgram]:
        plan, layout = self.plan, self.layout
        replicas = self.placement.replicas if chunk.spread else 1
        count = plan.accumulation.count if chunk.spread else 1
        averages = plan.accumulation.reduction == "mean"
        shares = (replicas if plan.reduction == "mean" else 1) * (count if averages else 1)
        share = fetcher(chunk, replicas, in_one_program=False)
        return [
            StageProgram(
                make_body(self.model, layout.stages, number),
                share,
                1 / count if averages else 1,
                recompute=self.options.recompute and number != layout.last,
                traced=with_operations(shares, self.placement.platform),
                loss_scale=self.numerics.settings.loss_scale,
                records=self.options.record,
                program=partial(self._named, number),
            )
            for number in range(len(layout.stages))
        ]

    def _named(self, number: int, kind: str, program: Any) -> Any:
        return self.watcher.program(f"stage {number} {kind}", program)


def with_operations(
    shares: int, platform: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what traces a function with operations for a share of a batch, on a platform."""

    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with keras_bridge.replaced_operations(WholeBatch(shares, 1)):
                if not cpu.fuses(platform):
                    return function(*args)
                with keras_bridge.replaced_operations(cpu.Fusion()):
                    return function(*args)

        return run

    return traced


class Call:
    """One device call: some weight updates, without waiting for any of them."""

    def __init__(self, programs: PipelinePrograms, chunk: Chunk) -> None:
        self.own, self.chunk = programs, chunk
        self.layout = layout = programs.layout
        self.stage_programs = programs.stage_programs(chunk)
        self.replicas = layout.replicas
        self.schedule = self._schedule()
        self.order = [event.action for event in simulate(self.schedule).events]
        parts = programs.variables.parts
        self.values: list[dict[int, jax.Array]] = [{} for _ in self.replicas]
        for variable in [*parts.trainable, *parts.non_trainable]:
            self._take(variable, self._column(variable), keras_bridge.values([variable])[0])
        self._diverge()
        dtype = programs.plan.accumulation.dtype
        self.totals = [
            {
                id(v): jax.device_put(
                    np.zeros(v.shape, jnp.dtype(dtype or v.dtype)),
                    layout.device(r, layout.home(v)),
                )
                for v in parts.trainable
            }
            for r in self.replicas
        ]
        self.optimizer = [
            [column.put(value) for value in keras_bridge.values(update.variables)]
            for column, update in zip(layout.columns, programs.updates, strict=True)
        ]
        self.numerics = [
            layout.last_column.split(v)[0] for v in keras_bridge.values(parts.numerics)
        ]
        self.no_loss = [
            jax.device_put(np.float32(0), layout.device(r, layout.mapping[0]))
            for r in self.replicas
        ]
        self._begin_counting()

    def _column(self, variable: keras.Variable) -> Column:
        return self.layout.columns[self.layout.home(variable)]

    def _schedule(self) -> Schedule:
        """Return the schedule; a rest goes through the pipeline as a micro-batch by itself."""
        if self.chunk.spread:
            return self.own.schedule
        options = Pipelining(device_mapping=tuple(self.layout.mapping))
        return options.plan_for(self.own.model, 1)

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
        metrics = keras_bridge.values(own.variables.parts.metrics)
        self.metrics = [list(values) for values in zip(*map(last.split, metrics), strict=True)]
        self.metrics = self.metrics or [[] for _ in self.replicas]
        for replica in self.layout.beginning_anew(self.chunk):
            self.metrics[replica] = [
                jnp.zeros_like(value) if aggregation == "sum" else value
                for value, aggregation in zip(
                    self.metrics[replica], own.roles.aggregations, strict=True
                )
            ]

    def _begin_counting(self) -> None:
        """Hand the factor of the loss to all devices, and count large gradients from nothing."""
        layout = self.layout
        scales = self.own.numerics.settings.loss_scale is not None
        factor = self.own.numerics.factor(self.numerics)
        self.factors = [column.put(factor) for column in layout.columns] if scales else []
        self.counts: dict[tuple[int, int], Counts] = {}
        for replica in self.replicas:
            for stage in layout.stages:
                device = layout.device(replica, layout.mapping[stage.number])
                zeros = [jax.device_put(np.float32(0), device) for _ in range(2 * scales)]
                self.counts[replica, stage.number] = tuple(zeros)

    def run(self) -> None:
        count = self.schedule.micro_batches
        updates = self.chunk.micro_batches // count
        doing = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.BACKWARD_INPUT: self._backward_input,
            Kind.BACKWARD_WEIGHTS: self._backward_weights,
        }
        for update in range(updates):
            self.first = update * count
            self.mail = Mail(self.layout)
            self.gradients: dict[tuple, list[jax.Array]] = {}
            self.kept: dict[tuple, Any] = {}
            self.losses: dict[tuple, jax.Array] = {}
            recorder = self.own.recorder(self.schedule) if update == updates - 1 else None
            for action in self.order:
                for replica in self.replicas:
                    begin = time.perf_counter() if recorder else 0.0
                    done = doing[action.kind](action.stage, action.micro_batch, replica)
                    if recorder:
                        recorder.started(action, replica, begin, done)
            if recorder:
                self.own.timeline = recorder.timeline()
            self._update()

    def _forward(self, number: int, micro_batch: int, replica: int) -> jax.Array:
        layout, stage = self.layout, self.layout.stages[number]
        place, last = layout.mapping[number], number == layout.last
        values = self.values[replica]
        received = self.mail.receive(number, micro_batch, replica)
        loss = self.losses.pop((replica, micro_batch), None)
        if loss is None:
            loss = self.no_loss[replica]
        where: tuple = ()
        if layout.reads[number]:
            where = position(layout, self.chunk, place, self.first + micro_batch, replica)
        rest = Rest(
            [values[id(v)] for v in stage.non_trainable],
            where,
            self.metrics[replica] if last else [],
            jax.device_put(loss, layout.device(replica, place)),
        )
        trainable = [values[id(v)] for v in stage.trainable]
        passed = self.stage_programs[number].forward(trainable, received, rest, bool(self.factors))
        values |= {id(v): x for v, x in zip(stage.non_trainable, passed.non_trainable, strict=True)}
        self.kept[replica, number, micro_batch] = passed.kept
        if last:
            self.metrics[replica] = passed.metrics
        else:
            self.losses[replica, micro_batch] = passed.loss
            self.mail.send(number, micro_batch, replica, passed.outputs)
        return passed.loss

    def _arguments(self, number: int, micro_batch: int, replica: int) -> tuple:
        layout, stage = self.layout, self.layout.stages[number]
        trainable = [self.values[replica][id(v)] for v in stage.trainable]
        gradients = (
            ()
            if number == layout.last
            else tuple(self.gradients.pop((replica, micro_batch, i), []) for i in stage.outputs)
        )
        factor = None
        if self.factors:
            place = layout.mapping[number]
            factor = layout.columns[place].split(self.factors[place])[replica]
        return trainable, self.kept.pop((replica, number, micro_batch)), gradients, factor

    def _counted(self, number: int, replica: int) -> tuple[Arrays, Counts]:
        totals = [self.totals[replica][id(v)] for v in self.layout.stages[number].trainable]
        return totals, self.counts[replica, number]

    def _keep(self, number: int, replica: int, totals: Arrays, counts: Counts) -> None:
        trainable = self.layout.stages[number].trainable
        self.totals[replica] |= {id(v): t for v, t in zip(trainable, totals, strict=True)}
        self.counts[replica, number] = counts

    def _send_back(self, number: int, micro_batch: int, replica: int, received: tuple) -> None:
        layout = self.layout
        for tensor, gradient in zip(layout.with_gradient[number], received, strict=True):
            device = layout.device(replica, layout.mapping[layout.producer[tensor]])
            sent = jax.device_put(gradient, device)
            self.gradients.setdefault((replica, micro_batch, tensor), []).append(sent)

    def _backward(self, number: int, micro_batch: int, replica: int) -> Any:
        arguments = self._arguments(number, micro_batch, replica)
        received, totals, counts, done = self.stage_programs[number].backward(
            *arguments, *self._counted(number, replica)
        )
        self._keep(number, replica, totals, counts)
        self._send_back(number, micro_batch, replica, received)
        return done

    def _backward_input(self, number: int, micro_batch: int, replica: int) -> Any:
        arguments = self._arguments(number, micro_batch, replica)
        received, shared, done = self.stage_programs[number].backward_input(*arguments)
        self.kept[replica, number, micro_batch] = arguments, shared
        self._send_back(number, micro_batch, replica, received)
        return done

    def _backward_weights(self, number: int, micro_batch: int, replica: int) -> Any:
        arguments, shared = self.kept.pop((replica, number, micro_batch))
        totals, counts, done = self.stage_programs[number].backward_weights(
            *arguments, shared, *self._counted(number, replica)
        )
        self._keep(number, replica, totals, counts)
        return done

    def _update(self) -> None:
        """Update the weights at every place.

        A norm over the whole gradient is exchanged first, and whether all of it is finite.
        """
        own, columns = self.own, self.layout.columns
        reduced = []
        for place, column in enumerate(columns):
            totals = [column.join([t[id(v)] for t in self.totals]) for v in own.trainable[place]]
            means = [column.join([x[id(v)] for x in self.values]) for v in own.statistics[place]]
            factor = self.factors[place] if self.factors else None
            gradients, means, square, finite = own.updates[place].reduce(totals, means, factor)
            for variable, value in zip(own.statistics[place], means, strict=True):
                self._take(variable, column, value)
            reduced.append((gradients, square, finite))
        key = self.numerics[-1] if self.numerics else None
        for place, column in enumerate(columns):
            gradients, square, finite = reduced[place]
            update = own.updates[place]
            if update.clip is not None:
                square = sum(column.put(other) for _, other, _ in reduced)
            if finite is not None:
                finite = jnp.stack([column.put(other) for _, _, other in reduced]).all()
            weights = [column.join([x[id(v)] for x in self.values]) for v in own.trainable[place]]
            weights, self.optimizer[place], zeros = update.apply(
                gradients,
                self.optimizer[place],
                weights,
                square,
                finite,
                None if key is None else column.put(key),
            )
            for variable, weight, zero in zip(own.trainable[place], weights, zeros, strict=True):
                self._take(variable, column, weight)
                for replica, value in enumerate(column.split(zero)):
                    self.totals[replica][id(variable)] = value
        if self.numerics:
            self._advance([finite for _, _, finite in reduced if finite is not None])

    def _advance(self, finites: Arrays) -> None:
        """Decide the factor of the loss for the next update, where the loss is computed."""
        device = self.layout.last_column.devices[0]
        here = [self.layout.columns[place].split(f)[0] for place, f in enumerate(finites)]
        counts = [tuple(count) for count in self.counts.values() if count]
        if not self.chunk.spread:
            # A rest was the same on every replica.
            counts = [tuple(c) for (replica, _), c in self.counts.items() if c and not replica]
        elif self.layout.placement.spans_processes:
            totals = (processes.total(count) for count in zip(*counts, strict=True))
            counts = [tuple(jnp.asarray(total) for total in totals)]
        moved = jax.device_put((self.numerics, counts, here), device)
        values, counts, here = moved
        large, counted = ([count[i] for count in counts] for i in range(2))
        self.numerics = self.own.advance(values, large, counted, here)
        self._begin_counting()

    def _take(self, variable: keras.Variable, column: Column, value: jax.Array) -> None:
        for replica, own in enumerate(column.split(value)):
            self.values[replica][id(variable)] = own

    def finish(self) -> Arrays:
        """Write all values back to the variables, and return those of the metrics."""
        own = self.own
        parts = own.variables.parts
        seeds = {
            id(v)
            for v, is_seed in zip(parts.non_trainable, own.roles.seeds, strict=True)
            if is_seed
        }
        for place, column in enumerate(self.layout.columns):
            for variable in [*own.trainable[place], *own.statistics[place]]:
                values = [x[id(variable)] for x in self.values]
                if id(variable) in seeds:
                    # They go on from the first replica's; the others are some strides away from it.
                    value = column.put(values[0] - self.layout.seed_offset(0, values[0]))
                elif jnp.issubdtype(values[0].dtype, jnp.floating):
                    value = column.join(values)
                else:
                    value = column.put(values[0])
                keras_bridge.assign([variable], [value])
            keras_bridge.assign(own.updates[place].variables, self.optimizer[place])
        last = self.layout.last_column
        keras_bridge.assign(parts.numerics, [last.put(value) for value in self.numerics])
        totals = total_metrics(self.metrics, own.roles, self.layout, spread=self.chunk.spread)
        keras_bridge.assign(parts.metrics, [last.put(total) for total in totals])
        return totals


def total_metrics(metrics: list[Arrays], roles: Roles, layout: Layout, *, spread: bool) -> Arrays:
    """Return the metrics of all replicas from those of each, on the first one's device."""
    spans_processes = layout.placement.spans_processes

    def total(values: tuple[jax.Array, ...], aggregation: str) -> jax.Array:
        first = values[0]
        if not spread:
            return first  # a rest was the same on every replica
        (device,) = first.devices()
        whole = sum((jax.device_put(value, device) for value in values[1:]), first)
        if spans_processes:
            whole = jax.device_put(processes.total([whole]), device)
        return whole if aggregation == "sum" else whole / layout.placement.replicas

    of_each = zip(zip(*metrics, strict=True), roles.aggregations, strict=True)
    return [total(values, aggregation) for values, aggregation in of_each]


def check_model(model: keras.Model, plan: Plan) -> None:
    """Refuse what a pipeline cannot do.

    Raises:
        ValueError: with what to do instead.
    """
    check_methods(model)
    check_losses(model, plan.micro_batches)
    for value, name, instead in (
        (plan.norm_group > 1, "batch_norm_group", "Leave it out."),
        (plan.shard_optimizer_state, "shard_optimizer_state", "Stages divide it already."),
        (mapping.of(model) is not None, "MapGradientOptimizer", "Override its apply()."),
        (plan.remat is not None, "remat", "Use set_pipelining_options(recompute=True)."),
    ):
        if value:
            raise ValueError(f"{name} is not there for models in stages. {instead}")
    check_optimizer(model.optimizer)


def check_methods(model: keras.Model) -> None:
    """Refuse a model whose own methods need all of it.

    Raises:
        ValueError: with what to do instead.
    """
    replaced = keras_bridge.overridden(model, ("compute_loss", "compute_metrics"))
    if replaced:
        raise ValueError(
            f"{type(model).__name__} overrides {' and '.join(replaced)}, which needs the whole "
            "model in one place. Pass a loss and metrics to compile(), or train it without stages."
        )
