"""One device call of a pipeline: the actions of its schedule, one after the other."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import distributed, keras_bridge
from convoy.engine.data.chunks import Chunk
from convoy.pipeline.communication.messages import Mail
from convoy.pipeline.communication.transfer import move
from convoy.pipeline.options import Pipelining
from convoy.pipeline.runner.layout import Column, position
from convoy.pipeline.runner.metrics import metrics_of_replicas, total_metrics
from convoy.pipeline.runner.stage_function import Rest
from convoy.pipeline.runner.stage_program import Counts
from convoy.pipeline.schedule import Action, Kind, Schedule
from convoy.pipeline.simulation import simulate

if TYPE_CHECKING:
    from convoy.pipeline.runner.training import PipelinePrograms

Arrays = list[jax.Array]


class Call:
    """One device call: some weight updates, without waiting for any of them."""

    def __init__(self, programs: PipelinePrograms, chunk: Chunk) -> None:
        self.own, self.chunk = programs, chunk
        self.layout = layout = programs.layout
        self.stage_programs, self.shapes = programs.stage_programs(chunk)
        self.replicas = layout.replicas
        self.schedule = self._schedule()
        self.order = [event.action for event in simulate(self.schedule).events]
        parts = programs.variables.parts
        self.here = [(k, column) for k, column in enumerate(layout.columns) if column.is_here]
        """The places in this process."""
        self.values = layout.values_of_replicas(programs.variables, programs.roles.seeds)
        metrics = keras_bridge.values(parts.metrics)
        self.metrics = metrics_of_replicas(metrics, layout, chunk, programs.roles)
        dtype = programs.config.accumulation.dtype
        self.totals: dict[int, dict[int, jax.Array]] = {r: {} for r in self.replicas}
        for v in parts.trainable:
            for r, device in layout.column_of(v).devices.items():
                zeros = np.zeros(v.shape, jnp.dtype(dtype or v.dtype))
                self.totals[r][id(v)] = jax.device_put(zeros, device)
        self.optimizer = {
            k: [column.put(value) for value in keras_bridge.values(programs.updates[k].variables)]
            for k, column in self.here
        }
        self.numerics = [self._common(v) for v in keras_bridge.values(parts.numerics)]
        self.no_loss = {
            r: jax.device_put(np.float32(0), device)
            for r, device in layout.columns[layout.mapping[0]].devices.items()
        }
        self._begin_counting()

    def _common(self, value: jax.Array) -> jax.Array:
        """Return one copy of what every process has."""
        return next(iter(self.layout.common.split(value).values()))

    def _schedule(self) -> Schedule:
        """Return the schedule; a rest goes through the pipeline as a micro-batch by itself."""
        if self.chunk.sharded:
            return self.own.schedule
        options = Pipelining(device_mapping=tuple(self.layout.mapping))
        return options.schedule_for(self.own.model, 1)

    def _begin_counting(self) -> None:
        """Hand the factor of the loss to all devices, and count large gradients from nothing."""
        layout = self.layout
        scales = self.own.numerics.settings.loss_scale is not None
        factor = self.own.numerics.factor(self.numerics)
        self.factors = {k: column.put(factor) for k, column in self.here} if scales else {}
        self.counts: dict[tuple[int, int], Counts] = {}
        for stage, place in enumerate(layout.mapping):
            for replica, device in layout.columns[place].devices.items():
                zeros = [jax.device_put(np.float32(0), device) for _ in range(2 * scales)]
                self.counts[replica, stage] = tuple(zeros)

    def run(self) -> None:
        count = self.schedule.micro_batches
        updates = self.chunk.micro_batches // count
        for update in range(updates):
            self.first = update * count
            self.mail = Mail(self.layout, self.shapes)
            self.kept: dict[tuple, Any] = {}
            recorder = self.own.recorder(self.schedule) if update == updates - 1 else None
            for action in self.order:
                for number, replica in enumerate(self.replicas):
                    begin = time.perf_counter() if recorder else 0.0
                    done = self._do(action, replica)
                    if recorder:
                        recorder.record(action, number, begin, done)
            if recorder:
                self.own.timeline = recorder.timeline()
            self._update()

    def _do(self, action: Action, replica: int) -> Any:
        """Carry out an action, or expect what it sends if it is another process's."""
        if not self.layout.runs(action.stage, replica):
            self.mail.expect(action, replica)
            return None
        run = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.BACKWARD_INPUT: self._backward_input,
            Kind.BACKWARD_WEIGHTS: self._backward_weights,
        }[action.kind]
        return run(action.stage, action.micro_batch, replica)

    def _forward(self, number: int, micro_batch: int, replica: int) -> jax.Array:
        layout, stage = self.layout, self.layout.stages[number]
        place, last = layout.mapping[number], number == layout.last
        values = self.values[replica]
        received = self.mail.receive(number, micro_batch, replica)
        loss = self.mail.loss(number, micro_batch, replica)
        where: tuple = ()
        if layout.reads[number]:
            where = position(self.chunk, place, self.first + micro_batch, replica)
        rest = Rest(
            [values[id(v)] for v in stage.non_trainable],
            where,
            self.metrics[replica] if last else [],
            self.no_loss[replica] if loss is None else loss,
        )
        trainable = [values[id(v)] for v in stage.trainable]
        passed = self.stage_programs[number].forward(trainable, received, rest, bool(self.factors))
        values |= {id(v): x for v, x in zip(stage.non_trainable, passed.non_trainable, strict=True)}
        self.kept[replica, number, micro_batch] = passed.kept
        if last:
            self.metrics[replica] = passed.metrics
        self.mail.send(number, micro_batch, replica, passed.outputs, passed.loss)
        return passed.loss

    def _arguments(self, number: int, micro_batch: int, replica: int) -> tuple:
        layout, stage = self.layout, self.layout.stages[number]
        trainable = [self.values[replica][id(v)] for v in stage.trainable]
        gradients = self.mail.gradients(number, micro_batch, replica)
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

    def _backward(self, number: int, micro_batch: int, replica: int) -> Any:
        arguments = self._arguments(number, micro_batch, replica)
        received, totals, counts, done = self.stage_programs[number].backward(
            *arguments, *self._counted(number, replica)
        )
        self._keep(number, replica, totals, counts)
        self.mail.send_back(number, micro_batch, replica, received)
        return done

    def _backward_input(self, number: int, micro_batch: int, replica: int) -> Any:
        arguments = self._arguments(number, micro_batch, replica)
        received, shared, done = self.stage_programs[number].backward_input(*arguments)
        self.kept[replica, number, micro_batch] = arguments, shared
        self.mail.send_back(number, micro_batch, replica, received)
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
        own = self.own
        reduced: dict[int, Arrays] = {}
        squares: dict[int, jax.Array] = {}
        finites: dict[int, jax.Array] = {}
        for place, column in self.here:
            totals = [self._joined(self.totals, v, column) for v in own.trainable[place]]
            means = [self._joined(self.values, v, column) for v in own.statistics[place]]
            reduced[place], means, squares[place], finite = own.updates[place].reduce(
                totals, means, self.factors.get(place)
            )
            for variable, value in zip(own.statistics[place], means, strict=True):
                self._take(variable, column, value)
            if finite is not None:
                finites[place] = finite
        if own.model.optimizer.global_clipnorm is not None:
            norms = self._from_all_places(squares)
            squares = {place: sum(found[1:], found[0]) for place, found in norms.items()}
        if self.factors:
            found_finite = self._from_all_places(finites)
            finites = {place: jnp.stack(found).all() for place, found in found_finite.items()}
        key = self.numerics[-1] if self.numerics else None
        for place, column in self.here:
            weights = [self._joined(self.values, v, column) for v in own.trainable[place]]
            weights, self.optimizer[place], zeros = own.updates[place].apply(
                reduced[place],
                self.optimizer[place],
                weights,
                squares[place],
                finites.get(place),
                None if key is None else column.put(key),
            )
            for variable, weight, zero in zip(own.trainable[place], weights, zeros, strict=True):
                self._take(variable, column, weight)
                for replica, value in column.split(zero).items():
                    self.totals[replica][id(variable)] = value
        if self.numerics:
            self._advance(finites)

    def _joined(
        self, values: dict[int, dict[int, jax.Array]], variable: keras.Variable, column: Column
    ) -> jax.Array:
        return column.join({replica: values[replica][id(variable)] for replica in column.devices})

    def _from_all_places(self, numbers: dict[int, jax.Array]) -> dict[int, Arrays]:
        """Hand every place here the numbers of all places, in their order."""
        layout = self.layout
        columns = layout.columns
        split = {place: columns[place].split(number) for place, number in numbers.items()}
        like = next(iter(numbers.values()))
        shapes = [jax.ShapeDtypeStruct(like.shape, like.dtype)]
        found: dict[int, Arrays] = {place: [] for place, _ in self.here}
        for source, target in itertools.product(range(len(columns)), repeat=2):
            arrived = {}
            for replica in self.replicas:
                ends = layout.device(replica, source), layout.device(replica, target)
                values = [split[source][replica]] if replica in split.get(source, {}) else None
                for value in move(values, shapes, *ends):
                    arrived[replica] = value
            if arrived:
                found[target].append(columns[target].join(arrived))
        return found

    def _advance(self, finites: dict[int, jax.Array]) -> None:
        """Decide the factor of the loss for the next update, in every process alike."""
        counts = [
            tuple(count)
            for (replica, _), count in self.counts.items()
            # A rest was the same on every replica.
            if count and (self.chunk.sharded or replica == 0)
        ]
        if self.layout.placement.spans_processes and self.factors:
            self._finish_own()
            none = np.zeros((1, 2), np.float32)
            own = np.array([list(map(np.asarray, count)) for count in counts] or none)
            totals = distributed.totals(list(own.sum(axis=0, dtype=np.float32)))
            counts = [tuple(jnp.asarray(total) for total in totals)]
        here = [next(iter(self.layout.columns[k].split(f).values())) for k, f in finites.items()]
        moved = jax.device_put((self.numerics, counts, here), self.layout.common.first_device)
        values, counts, here = moved
        large, counted = ([count[i] for count in counts] for i in range(2))
        self.numerics = self.own.advance(values, large, counted, here)
        self._begin_counting()

    def _take(self, variable: keras.Variable, column: Column, value: jax.Array) -> None:
        for replica, own in column.split(value).items():
            self.values[replica][id(variable)] = own

    def _finish_own(self) -> None:
        """Wait for what this process has started, before all agree on something.

        What they agree by takes the thread that computes, and others may need what it would.
        """
        if self.layout.placement.crosses_processes:
            jax.block_until_ready((self.values, self.optimizer))

    def finish(self) -> Arrays:
        """Write all values back to the variables, and return those of the metrics."""
        own = self.own
        parts = own.variables.parts
        seeds = {
            id(v)
            for v, is_seed in zip(parts.non_trainable, own.roles.seeds, strict=True)
            if is_seed
        }
        for place, column in self.here:
            first = next(iter(column.devices))
            for variable in [*own.trainable[place], *own.statistics[place]]:
                value = self.values[first][id(variable)]
                if id(variable) in seeds:
                    # They go on from the first replica's; the others are some strides away from it.
                    value = column.put(value - self.layout.seed_offset(first, value))
                elif jnp.issubdtype(value.dtype, jnp.floating):
                    value = self._joined(self.values, variable, column)
                else:
                    value = column.put(value)
                keras_bridge.assign([variable], [value])
            keras_bridge.assign(own.updates[place].variables, self.optimizer[place])
        self._finish_own()
        common = self.layout.common
        keras_bridge.assign(parts.numerics, [common.put(value) for value in self.numerics])
        totals = total_metrics(self.metrics, parts.metrics, own.roles, self.layout, self.chunk)
        keras_bridge.assign(parts.metrics, [common.put(total) for total in totals])
        return totals
