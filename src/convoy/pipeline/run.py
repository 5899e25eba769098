"""Carries out a schedule: one program for each stage and kind of action, on its own devices.

Python only starts programs and transfers, in an order in which everything they need has been
started before; the devices run after it at their own pace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import cpu, keras_bridge
from convoy.engine import numerics
from convoy.engine.feed import Chunk, fetcher
from convoy.engine.plan import Plan
from convoy.engine.replicate import SEED_STRIDE, Roles
from convoy.engine.state import Variables
from convoy.engine.whole_batch import WholeBatch
from convoy.pipeline.body import Rest, make_body, reads_data, received_by
from convoy.pipeline.options import Pipelining, stages_of_model
from convoy.pipeline.placement import PipelinePlacement
from convoy.pipeline.schedule import Action, Kind, Schedule
from convoy.pipeline.simulate import simulate
from convoy.pipeline.split import calls_of
from convoy.pipeline.stage import stages_of
from convoy.pipeline.stage_program import StageProgram
from convoy.pipeline.update import DeviceUpdate, check_optimizer

Arrays = list[jax.Array]


class Column:
    """One place in the pipeline, in all replicas."""

    def __init__(self, placement: PipelinePlacement, place: int) -> None:
        self.devices = [row[place] for row in placement.rows]
        self.mesh = placement.column(place) if placement.replicas > 1 else None

    def put(self, value: Any) -> jax.Array:
        """Move a value to every replica."""
        if self.mesh is None:
            return jax.device_put(value, self.devices[0])
        everywhere = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return jax.device_put(value, everywhere)

    def join(self, values: list[jax.Array]) -> jax.Array:
        """Make one array of those of the replicas, for a program over all of them."""
        if self.mesh is None:
            return values[0]
        everywhere = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        return jax.make_array_from_single_device_arrays(values[0].shape, everywhere, values)

    def split(self, value: jax.Array) -> list[jax.Array]:
        """Return each replica's own array."""
        if self.mesh is None:
            return [value]
        by_device = {shard.device: shard.data for shard in value.addressable_shards}
        return [by_device[device] for device in self.devices]


class PipelinePrograms:
    """Trains a model in stages; what `engine.program.Programs` is for one that is whole."""

    def __init__(self, model: keras.Model, plan: Plan, options: Pipelining) -> None:
        check_model(model, plan)
        self.model, self.plan, self.options = model, plan, options
        self.placement: PipelinePlacement = plan.placement  # type: ignore[assignment]
        self.variables = Variables(model, "train")
        self.roles = Roles.of(model, self.variables)
        self.compilation = keras_bridge.compilation(model)
        self.assignment = stages_of_model(model)
        calls = calls_of(model)
        self.stages = stages_of(model, calls, self.assignment or [0] * len(calls))
        self.schedule = options.plan_for(model, plan.accumulation.count)
        self.mapping = self.schedule.mapping
        last = len(self.stages) - 1
        self.received = [received_by(s, s.number == last, model) for s in self.stages]
        self.reads = [reads_data(s, s.number == last, model) for s in self.stages]
        self.columns = [Column(self.placement, k) for k in range(max(self.mapping) + 1)]
        self.producer = {i: s.number for s in self.stages for i in s.outputs}
        self._find_homes()
        self.updates = [
            DeviceUpdate(model.optimizer, trainable, column.mesh, plan)
            for trainable, column in zip(self._own("trainable"), self.columns, strict=True)
        ]
        self._programs: dict[tuple, list[StageProgram]] = {}
        self._results = jax.jit(lambda metrics: keras_bridge.metric_results(model, metrics))
        self._running: list[Any] = []

    def _find_homes(self) -> None:
        """Find the place of every variable.

        Raises:
            ValueError: if a layer runs in stages on two devices.
        """
        self.home: dict[int, int] = {}
        for stage in self.stages:
            for variable in stage.variables:
                place = self.mapping[stage.number]
                if self.home.setdefault(id(variable), place) != place:
                    raise ValueError(
                        f"The layer of {variable.path!r} runs in stages on devices "
                        f"{self.home[id(variable)]} and {place}, but a weight lives on one. Put "
                        "these stages on one device by device_mapping, or cut elsewhere."
                    )

    def _own(self, kind: str) -> list[list[keras.Variable]]:
        """Return the variables of a kind at each place."""
        found: list[list[keras.Variable]] = [[] for _ in self.columns]
        for variable in getattr(self.variables.parts, kind):
            found[self.home.get(id(variable), 0)].append(variable)
        return found

    def still_fits(self) -> bool:
        """Return whether the model has the variables and stages that the programs were made for."""
        now = Variables(self.model, "train").parts
        return (
            self.compilation is keras_bridge.compilation(self.model)
            and self.assignment == stages_of_model(self.model)
            and all(
                len(then) == len(part) and all(a is b for a, b in zip(then, part, strict=True))
                for then, part in zip(self.variables.parts, now, strict=True)
            )
        )

    def place(self) -> None:
        """Move the variables to where their stages run."""
        self.slot_home: dict[int, int] = {}
        for place, update in enumerate(self.updates):
            for variable in update.variables:
                self.slot_home.setdefault(id(variable), place)
        last = self.columns[self.mapping[-1]]
        for part, values in zip(self.variables.parts, self.variables.read(), strict=True):
            homes = [
                last
                if part is self.variables.parts.metrics
                else self.columns[self.home.get(id(v), self.slot_home.get(id(v), 0))]
                for v in part
            ]
            keras_bridge.assign(part, [h.put(x) for h, x in zip(homes, values, strict=True)])

    def run(self, chunk: Chunk) -> Any:
        """Run a chunk's weight updates; the variables then hold their outcome."""
        while len(self._running) > 1:
            jax.block_until_ready(self._running.pop(0))
        call = Call(self, chunk)
        call.run()
        metrics = call.finish()
        outcome = self._results(metrics)
        self._running.append(outcome)
        return outcome

    def stage_programs(self, chunk: Chunk) -> list[StageProgram]:
        """Return the programs of all stages for chunks of this kind."""
        key = (chunk.layout, chunk.batch, chunk.spread)
        if key not in self._programs:
            self._programs[key] = self._make_programs(chunk)
        return self._programs[key]

    def _make_programs(self, chunk: Chunk) -> list[StageProgram]:
        plan = self.plan
        replicas = self.placement.replicas if chunk.spread else 1
        count = plan.accumulation.count if chunk.spread else 1
        averages = plan.accumulation.reduction == "mean"
        shares = (replicas if plan.reduction == "mean" else 1) * (count if averages else 1)
        share = fetcher(chunk, replicas, in_one_program=False)

        def traced(function: Callable[..., Any]) -> Callable[..., Any]:
            def with_operations(*args: Any) -> Any:
                with keras_bridge.replaced_operations(WholeBatch(shares, 1)):
                    if not cpu.fuses(self.placement.platform):
                        return function(*args)
                    with keras_bridge.replaced_operations(cpu.Fusion()):
                        return function(*args)

            return with_operations

        last = len(self.stages) - 1
        return [
            StageProgram(
                make_body(self.model, self.stages, number, share),
                1 / count if averages else 1,
                recompute=self.options.recompute and number != last,
                traced=traced,
            )
            for number in range(len(self.stages))
        ]


class Call:
    """One device call: some weight updates, without waiting for any of them."""

    def __init__(self, programs: PipelinePrograms, chunk: Chunk) -> None:
        self.own, self.chunk = programs, chunk
        self.stage_programs = programs.stage_programs(chunk)
        self.replicas = range(programs.placement.replicas)
        self.schedule = self._schedule()
        self.order = [event.action for event in simulate(self.schedule).events]
        parts = programs.variables.parts
        self.values: list[dict[int, jax.Array]] = [{} for _ in self.replicas]
        for kind in ("trainable", "non_trainable"):
            for variable in getattr(parts, kind):
                self._spread(variable, programs.home.get(id(variable), 0))
        self._diverge()
        self.totals = [
            {
                id(v): jax.device_put(
                    jnp.zeros(v.shape, self._dtype(v)), self._device(r, programs.home[id(v)])
                )
                for v in parts.trainable
                if id(v) in programs.home
            }
            for r in self.replicas
        ]
        self.optimizer = [
            [column.put(value) for value in keras_bridge.values(update.variables)]
            for column, update in zip(programs.columns, programs.updates, strict=True)
        ]

    def _dtype(self, variable: keras.Variable) -> str:
        return self.own.plan.accumulation.dtype or variable.dtype

    def _schedule(self) -> Schedule:
        """Return the schedule; a rest goes through the pipeline as a micro-batch by itself."""
        if self.chunk.spread:
            return self.own.schedule
        options = Pipelining(device_mapping=self.own.mapping)
        return options.plan_for(self.own.model, 1)

    def _device(self, replica: int, place: int) -> jax.Device:
        return self.own.columns[place].devices[replica]

    def _spread(self, variable: keras.Variable, place: int) -> None:
        split = self.own.columns[place].split(keras_bridge.values([variable])[0])
        for values, value in zip(self.values, split, strict=True):
            values[id(variable)] = value

    def _diverge(self) -> None:
        """Give each replica its own random stream, and metrics that start from nothing."""
        own = self.own
        for variable, is_seed in zip(
            own.variables.parts.non_trainable, own.roles.seeds, strict=True
        ):
            for replica in self.replicas:
                if is_seed and replica:
                    value = self.values[replica][id(variable)]
                    offset = np.uint32(SEED_STRIDE * replica & 0xFFFFFFFF)
                    self.values[replica][id(variable)] = value + offset.astype(value.dtype)
        last = own.columns[own.mapping[-1]]
        metrics = keras_bridge.values(own.variables.parts.metrics)
        self.metrics = [list(values) for values in zip(*map(last.split, metrics), strict=True)]
        self.metrics = self.metrics or [[] for _ in self.replicas]
        for replica in self.replicas[1:]:
            self.metrics[replica] = [
                jnp.zeros_like(value) if aggregation == "sum" else value
                for value, aggregation in zip(
                    self.metrics[replica], own.roles.aggregations, strict=True
                )
            ]

    def run(self) -> None:
        count = self.schedule.micro_batches
        for update in range(self.chunk.micro_batches // count):
            self.first = update * count
            self.sent: dict[tuple, jax.Array] = {}
            self.gradients: dict[tuple, list[jax.Array]] = {}
            self.kept: dict[tuple, Any] = {}
            self.losses: dict[tuple, jax.Array] = {}
            for action in self.order:
                for replica in self.replicas:
                    self._do(action, replica)
            self._update()

    def _do(self, action: Action, replica: int) -> None:
        doing = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.BACKWARD_INPUT: self._backward_input,
            Kind.BACKWARD_WEIGHTS: self._backward_weights,
        }
        doing[action.kind](action.stage, action.micro_batch, replica)

    def _forward(self, number: int, micro_batch: int, replica: int) -> None:
        own, stage = self.own, self.own.stages[number]
        place, last = own.mapping[number], number == len(own.stages) - 1
        values = self.values[replica]
        received = tuple(
            self.sent[replica, micro_batch, tensor, place] for tensor in own.received[number]
        )
        loss = self.losses.pop((replica, micro_batch), jnp.float32(0))
        rest = Rest(
            [values[id(v)] for v in stage.non_trainable],
            self._position(place, micro_batch, replica) if own.reads[number] else (),
            self.metrics[replica] if last else [],
            jax.device_put(loss, self._device(replica, place)),
        )
        trainable = [values[id(v)] for v in stage.trainable]
        passed = self.stage_programs[number].forward(trainable, received, rest)
        values |= {id(v): x for v, x in zip(stage.non_trainable, passed.non_trainable, strict=True)}
        self.kept[replica, number, micro_batch] = passed.kept
        if last:
            self.metrics[replica] = passed.metrics
            return
        self.losses[replica, micro_batch] = passed.loss
        for tensor, value in zip(stage.outputs, passed.outputs, strict=True):
            for other in own.stages[number + 1 :]:
                if tensor in own.received[other.number]:
                    target = own.mapping[other.number]
                    device = self._device(replica, target)
                    self.sent[replica, micro_batch, tensor, target] = jax.device_put(value, device)

    def _position(self, place: int, micro_batch: int, replica: int) -> tuple:
        index = np.int32(self.first + micro_batch)
        if self.chunk.layout == "block":
            return self.chunk.source[replica][place], index, np.int32(replica)
        arrays, order, offset = self.chunk.source
        source = (arrays[replica][place], order and order[replica][place], offset)
        return source, index, np.int32(replica)

    def _arguments(self, number: int, micro_batch: int, replica: int) -> tuple:
        stage = self.own.stages[number]
        trainable = [self.values[replica][id(v)] for v in stage.trainable]
        last = number == len(self.own.stages) - 1
        gradients = (
            ()
            if last
            else tuple(self.gradients.pop((replica, micro_batch, i)) for i in stage.outputs)
        )
        return trainable, self.kept.pop((replica, number, micro_batch)), gradients

    def _totals(self, number: int, replica: int) -> Arrays:
        return [self.totals[replica][id(v)] for v in self.own.stages[number].trainable]

    def _keep_totals(self, number: int, replica: int, totals: Arrays) -> None:
        trainable = self.own.stages[number].trainable
        self.totals[replica] |= {id(v): t for v, t in zip(trainable, totals, strict=True)}

    def _send_back(self, number: int, micro_batch: int, replica: int, received: tuple) -> None:
        own = self.own
        for tensor, gradient in zip(own.received[number], received, strict=True):
            device = self._device(replica, own.mapping[own.producer[tensor]])
            sent = jax.device_put(gradient, device)
            self.gradients.setdefault((replica, micro_batch, tensor), []).append(sent)

    def _backward(self, number: int, micro_batch: int, replica: int) -> None:
        arguments = self._arguments(number, micro_batch, replica)
        received, totals = self.stage_programs[number].backward(
            *arguments, self._totals(number, replica)
        )
        self._keep_totals(number, replica, totals)
        self._send_back(number, micro_batch, replica, received)

    def _backward_input(self, number: int, micro_batch: int, replica: int) -> None:
        arguments = self._arguments(number, micro_batch, replica)
        of_input, _ = self.stage_programs[number].halves(*arguments)
        received, shared = of_input(*arguments)
        self.kept[replica, number, micro_batch] = arguments, shared
        self._send_back(number, micro_batch, replica, received)

    def _backward_weights(self, number: int, micro_batch: int, replica: int) -> None:
        arguments, shared = self.kept.pop((replica, number, micro_batch))
        _, of_weights = self.stage_programs[number].halves(*arguments)
        totals = of_weights(arguments, shared, self._totals(number, replica))
        self._keep_totals(number, replica, totals)

    def _update(self) -> None:
        """Update the weights at every place; a norm over the whole gradient is exchanged first."""
        own = self.own
        trainable, statistics = own._own("trainable"), own._own("non_trainable")
        reduced = []
        for place, column in enumerate(own.columns):
            totals = [column.join([t[id(v)] for t in self.totals]) for v in trainable[place]]
            means = [column.join([x[id(v)] for x in self.values]) for v in statistics[place]]
            gradients, means, square = own.updates[place].reduce(totals, means)
            for variable, value in zip(statistics[place], means, strict=True):
                self._take(variable, column, value)
            reduced.append((gradients, square))
        for place, column in enumerate(own.columns):
            gradients, square = reduced[place]
            if own.updates[place].clip is not None:
                square = sum(column.put(other) for _, other in reduced)
            weights = [column.join([x[id(v)] for x in self.values]) for v in trainable[place]]
            weights, self.optimizer[place], zeros = own.updates[place].apply(
                gradients, self.optimizer[place], weights, square
            )
            for variable, weight, zero in zip(trainable[place], weights, zeros, strict=True):
                self._take(variable, column, weight)
                for replica, value in enumerate(column.split(zero)):
                    self.totals[replica][id(variable)] = value

    def _take(self, variable: keras.Variable, column: Column, value: jax.Array) -> None:
        for replica, own in enumerate(column.split(value)):
            self.values[replica][id(variable)] = own

    def finish(self) -> Arrays:
        """Write all values back to the variables, and return those of the metrics."""
        own = self.own
        parts = own.variables.parts
        for place, column in enumerate(own.columns):
            for kind in ("trainable", "non_trainable"):
                for variable in own._own(kind)[place]:
                    values = [x[id(variable)] for x in self.values]
                    keras_bridge.assign([variable], [_agreed(column, values)])
            keras_bridge.assign(own.updates[place].variables, self.optimizer[place])
        last = own.columns[own.mapping[-1]]
        totals = [
            self._total(list(values), aggregation)
            for values, aggregation in zip(
                zip(*self.metrics, strict=True), own.roles.aggregations, strict=True
            )
        ]
        keras_bridge.assign(parts.metrics, [last.put(total) for total in totals])
        return totals

    def _total(self, values: list[jax.Array], aggregation: str) -> jax.Array:
        first = values[0]
        if len(values) == 1 or not self.chunk.spread:
            return first  # a rest was the same on every replica
        (device,) = first.devices()
        total = sum((jax.device_put(value, device) for value in values[1:]), first)
        return total if aggregation == "sum" else total / len(values)


def _agreed(column: Column, values: list[jax.Array]) -> jax.Array:
    # Random states go on from the first replica's; the others are some strides away from it.
    if jnp.issubdtype(values[0].dtype, jnp.floating):
        return column.join(values)
    return column.put(values[0])


def check_model(model: keras.Model, plan: Plan) -> None:
    """Refuse what a pipeline cannot do, or not yet.

    Raises:
        ValueError: with what to do instead.
    """
    replaced = keras_bridge.overridden(model, ("compute_loss", "compute_metrics"))
    if replaced:
        raise ValueError(
            f"{type(model).__name__} overrides {' and '.join(replaced)}, which needs the whole "
            "model in one place. Pass a loss and metrics to compile(), or train it without stages."
        )
    if numerics.of(model).settings.active:
        raise ValueError(
            "loss_scale and stochastic_rounding are not there for models in stages. Leave them "
            "out, or train the model without stages."
        )
    for value, name, instead in (
        (plan.norm_group > 1, "batch_norm_group", "Leave it out."),
        (plan.shard_optimizer_state, "shard_optimizer_state", "Stages divide it already."),
        (plan.remat is not None, "remat", "Use set_pipelining_options(recompute=True)."),
    ):
        if value:
            raise ValueError(f"{name} is not there for models in stages. {instead}")
    check_optimizer(model.optimizer)
