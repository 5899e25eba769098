"""A pipeline as a Keras model, and how it runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import convoy
import jax
import keras
import numpy as np
from convoy.engine.prepared_model import PreparedModel
from convoy.estimator.network import Given
from convoy.ipu import optimizers
from convoy.ipu.accumulation import Accumulation
from convoy.ipu.keras.pipeline_options import SCHEDULES, PipelineOptions
from convoy.ipu.optimizers import IpuOptimizer, Wishes
from convoy.ipu.pipelining.graph import Data, Graph, Stages, as_row, trace
from convoy.ipu.pipelining.outfeed import Kept, Outfeed
from convoy.report.files import new_folder

LOSS = "loss"
# Bytes of data and results that a device call has, unless one execution takes more.
DEVICE_CALL = 16 << 20


@dataclass(frozen=True)
class Description:
    """What a call of `pipeline` asks for, but for its data.

    Attributes:
        stages: the functions.
        optimizer_function: `None` if it does not train.
        options: checked ones, with the count of micro-batches and the device of each function.
        outfeed: what goes into the queue.
        name: of the network.
        recompute: whether stages keep their input only.
        devices: as many as all replicas take.
        replicas: how many there are.
        reduction: of gradients over replicas; `None` if no strategy says it.
        settings: other arguments of `convoy.Strategy`.
        reports: where a report goes, if one was asked for.
    """

    stages: Stages
    optimizer_function: Callable[..., Any] | None
    options: PipelineOptions
    outfeed: Outfeed
    name: str
    recompute: bool
    devices: tuple[jax.Device, ...]
    replicas: int
    reduction: Literal["sum", "mean"] | None
    settings: Mapping[str, Any]
    reports: Path | None

    @property
    def count(self) -> int:
        """Micro-batches of an execution."""
        return self.options.count or 1

    @property
    def key(self) -> tuple:
        """The same for calls that a network can be used for again, but for its functions."""
        options, outfeed = self.options, self.outfeed
        return (
            (self.optimizer_function is None, self.count, options.method, options.dtype),
            (options.schedule, tuple(options.device_mapping or ()), self.recompute),
            (self.devices, self.replicas, self.reduction, tuple(sorted(self.settings.items()))),
            (outfeed.queue is None, outfeed.loss, outfeed.mask, outfeed.accumulate),
            (self.name, self.reports),
        )


class Network:
    """The stages of a pipeline as a Keras model: what it computes for a micro-batch is a row.

    Args:
        description: what it is for.
        data: whose shapes it is for.
        repeat: how many executions a device call has at most.

    Raises:
        TypeError: if the optimizer function returns something else than it should.
        ValueError: if something is missing, or does not go together.
    """

    def __init__(self, description: Description, data: Data, repeat: int) -> None:
        self.description = description
        graph = trace(description.stages, description.optimizer_function, data)
        wishes = self._wishes(graph)
        training = graph.told is not None
        loss = None if graph.told is None else graph.told.loss
        self.tensors = description.outfeed.chosen(graph.outputs, loss, training=training)
        results = self._results(graph, loss)
        self.names = list(results)
        strategy = convoy.Strategy(
            description.devices,
            reduction=wishes.reduction or description.reduction or "mean",
            loss_scale=wishes.loss_scale,
            **description.settings,
        )
        if description.reports is not None:
            strategy.record(new_folder(description.reports))
        with strategy.scope():
            self.model = keras.Model(graph.rows, results, name=re.sub(r"\W", "_", description.name))
        kept = [tensor for name, tensor in results.items() if name != LOSS]
        self.executions = self._fitting([*data.specs, *kept], repeat)
        self.rows = self.executions * description.count * description.replicas
        """Of a device call."""
        self.kept = [Kept(self.rows, t.shape[1:], str(t.dtype)) for t in kept if training]
        PreparedModel.of(self.model).gradient_map = wishes.gradient_map
        self.model.compile(
            wishes.optimizer,
            loss={LOSS: Given(name=LOSS)} if training else None,
            metrics={f"output_{n}": [metric] for n, metric in enumerate(self.kept)},
            steps_per_execution=self.executions * description.count,
        )
        if graph.told is not None and isinstance(graph.told.opt, IpuOptimizer):
            graph.told.opt.compiled_with(self.model)
        self._set_options()

    def _wishes(self, graph: Graph) -> Wishes:
        """Return what the optimizer says.

        Raises:
            ValueError: if it does not go together with the pipeline.
        """
        if graph.told is None:
            return Wishes("sgd")  # not asked
        wishes, replicas = optimizers.read(graph.told.opt), self.description.replicas
        if wishes.accumulation is not None:
            raise ValueError(
                "The optimizer accumulates gradients, and so does the pipeline. Pass "
                "gradient_accumulation_count alone."
            )
        if replicas > 1 and wishes.reduction is None and self.description.reduction is None:
            raise ValueError(
                f"The pipeline is trained on {replicas} replicas, but their gradients do not come "
                "together. Wrap the optimizer in ipu.optimizers.CrossReplicaOptimizer."
            )
        return wishes

    def _results(self, graph: Graph, loss: Any) -> dict[str, keras.KerasTensor]:
        """Return the model's outputs: what goes into the queue, and the loss.

        Raises:
            ValueError: if there are none.
        """
        like = next(iter(graph.rows.values()))
        with convoy.PipelineStage(graph.last):
            chosen = enumerate(jax.tree.leaves(self.tensors))
            results = {f"output_{number}": as_row(tensor, like) for number, tensor in chosen}
            if loss is not None:
                # Gradients of several numbers are those of their sum.
                results[LOSS] = as_row(keras.ops.sum(loss), like)
        if not results:
            raise ValueError("The last stage returns nothing, so there is nothing to compute.")
        return results

    def _fitting(self, arrays: list[Any], repeat: int) -> int:
        """Return how many executions a device call has."""
        sizes = [
            int(np.prod([size or 1 for size in array.shape])) * np.dtype(str(array.dtype)).itemsize
            for array in arrays
        ]
        execution = sum(sizes) * self.description.count * self.description.replicas
        return max(1, min(repeat, DEVICE_CALL // execution))

    def _set_options(self) -> None:
        options = self.description.options
        self.model.set_pipelining_options(
            schedule=SCHEDULES[options.schedule],
            device_mapping=options.device_mapping,
            recompute=self.description.recompute,
        )
        if self.description.optimizer_function is not None:
            accumulation = Accumulation(self.description.count, options.method, options.dtype)
            self.model.set_gradient_accumulation(
                accumulation.count, reduction=accumulation.reduction, dtype=accumulation.dtype
            )

    # Running ----------------------------------------------------------------------------------

    def run(self, outfeed: Outfeed, data: Data, repeat: int) -> None:
        """Run so many executions, and put what they return into the queue."""
        micro_batches = repeat * self.description.count * self.description.replicas
        rows = data.rows(micro_batches)
        if self.description.optimizer_function is not None:
            self.model.fit(
                self._batches(rows),
                shuffle=False,
                verbose=0,
                callbacks=[_HandOver(self, outfeed)],
            )
            return
        for begin in range(0, micro_batches, self.rows):
            count = min(self.rows, micro_batches - begin)
            given = ((self._named(row),) for row in itertools.islice(rows, count))
            outputs = self.model.predict(given, verbose=0)
            self.hand_over(outfeed, [outputs[name] for name in self.names])

    def hand_over(self, outfeed: Outfeed, values: list[np.ndarray]) -> None:
        """Put the values of a device call into the queue."""
        packed = jax.tree.unflatten(jax.tree.structure(self.tensors), values)
        outfeed.put(packed, self.tensors, self.description.count, self.description.replicas)

    def _batches(self, rows: Iterator[list[np.ndarray]]) -> Iterator[tuple[dict, dict]]:
        """Return inputs and targets: of an output, where to keep it."""
        for number, row in enumerate(rows):
            place = np.array([number % self.rows], np.int32)
            yield self._named(row), dict.fromkeys(self.names, place)

    def _named(self, row: list[np.ndarray]) -> dict[str, np.ndarray]:
        return {f"given_{number}": value for number, value in enumerate(row)}


class _HandOver(keras.callbacks.Callback):
    """Puts what a device call has kept into the queue."""

    def __init__(self, network: Network, outfeed: Outfeed) -> None:
        super().__init__()
        self.network, self.outfeed, self.done = network, outfeed, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        rows = (batch + 1 - self.done) * self.network.description.replicas
        self.done = batch + 1
        self.network.hand_over(self.outfeed, [kept.rows(rows) for kept in self.network.kept])
