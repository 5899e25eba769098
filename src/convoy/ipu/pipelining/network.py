"""The Keras model of a pipeline, and its execution."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import convoy
import jax
import keras
import numpy as np
from convoy.engine.step.all_reduce import Reduction
from convoy.estimator.network import LOSS, OutputLoss, build_model
from convoy.ipu.optimizers import GradientOptions, IpuOptimizer, check_reduced, gradient_options
from convoy.ipu.pipelining.graph import Graph, PipelineInput, Stages, as_row, trace
from convoy.ipu.pipelining.options import PipelineOptions
from convoy.ipu.pipelining.outfeed import MicroBatchOutputs, Outfeed
from convoy.report.files import new_folder
from convoy.types import Logs, PyTree

# Bytes of data and results of a device call, unless one execution takes more.
DEVICE_CALL = 16 << 20


@dataclass(frozen=True)
class Description:
    """The arguments of a call of `pipeline`, except for its data.

    Attributes:
        stages: the functions.
        optimizer_function: `None` if the pipeline does not train.
        options: checked options, with the number of micro-batches and the device of each function.
        outfeed: outputs that go into the queue.
        name: name of the network.
        activation_checkpointing: whether stages keep only their inputs for the backward pass.
        devices: the devices of all replicas.
        replicas: number of replicas.
        reduction: reduction of gradients over replicas; `None` if there is no strategy.
        strategy_options: other arguments of `convoy.Strategy`.
        reports: folder for a report, if reports are enabled.
    """

    stages: Stages
    optimizer_function: Callable[..., PyTree] | None
    options: PipelineOptions
    outfeed: Outfeed
    name: str
    activation_checkpointing: bool
    devices: tuple[jax.Device, ...]
    replicas: int
    reduction: Reduction | None
    strategy_options: Mapping[str, Any]
    reports: Path | None

    @property
    def gradient_accumulation(self) -> int:
        """Micro-batches per execution, weight update and replica."""
        return self.options.accumulation.gradient_accumulation

    @property
    def key(self) -> tuple:
        """Equal for calls that can use the same network, apart from their functions."""
        options, outfeed = self.options, self.outfeed
        return (
            (self.optimizer_function is None, options.accumulation),
            (options.schedule, tuple(options.device_mapping or ()), self.activation_checkpointing),
            (self.devices, self.replicas, self.reduction),
            tuple(sorted(self.strategy_options.items())),
            (outfeed.queue is None, outfeed.loss, outfeed.mask, outfeed.accumulate),
            (self.name, self.reports),
        )


class Network:
    """The stages of a pipeline as a Keras model, with one row of its inputs per micro-batch.

    Args:
        description: the arguments of `pipeline`.
        data: the data, for its shapes.
        repeat: maximum number of executions in a device call.

    Raises:
        TypeError: if the optimizer function does not return an `OptimizerFunctionOutput`.
        ValueError: if arguments are missing, or do not fit together.
    """

    def __init__(self, description: Description, data: PipelineInput, repeat: int) -> None:
        self.description = description
        graph = trace(description.stages, description.optimizer_function, data)
        gradients = self._gradient_options(graph)
        training = graph.minimised is not None
        loss = None if graph.minimised is None else graph.minimised.loss
        self.tensors = description.outfeed.chosen(graph.outputs, loss, training=training)
        results = self._results(graph, loss)
        self.names = list(results)
        outputs = [tensor for name, tensor in results.items() if name != LOSS]
        self.executions = self._executions_per_call([*data.specs, *outputs], repeat)
        self.rows = self.executions * description.gradient_accumulation * description.replicas
        """Rows of a device call."""
        self.outputs = [
            MicroBatchOutputs(self.rows, t.shape[1:], str(t.dtype)) for t in outputs if training
        ]
        strategy = convoy.Strategy(
            description.devices,
            reduction=gradients.reduction or "mean",
            loss_scale=gradients.loss_scale,
            **description.strategy_options,
        )
        if description.reports is not None:
            strategy.record(new_folder(description.reports))
        options = description.options
        self.model = build_model(
            strategy,
            graph.rows,
            results,
            gradient_map=gradients.gradient_map,
            stages=options.stages(graph.last, description.activation_checkpointing),
            accumulation=options.accumulation.native() if training else None,
            name=re.sub(r"\W", "_", description.name),
            optimizer=gradients.optimizer,
            loss={LOSS: OutputLoss(name=LOSS)} if training else None,
            metrics={f"output_{n}": [metric] for n, metric in enumerate(self.outputs)},
            steps_per_execution=self.executions * description.gradient_accumulation,
        )
        if graph.minimised is not None and isinstance(graph.minimised.opt, IpuOptimizer):
            graph.minimised.opt.attach(self.model)

    def _gradient_options(self, graph: Graph) -> GradientOptions:
        """Return the options of the optimizer.

        Raises:
            ValueError: if the gradients of replicas would not be reduced.
        """
        if graph.minimised is None:
            return GradientOptions("sgd")  # unused: nothing is trained
        options = gradient_options(graph.minimised.opt)
        reduction = options.reduction or self.description.reduction
        check_reduced("The pipeline", self.description.replicas, reduction is not None)
        return replace(options, reduction=reduction)

    def _results(
        self, graph: Graph, loss: keras.KerasTensor | None
    ) -> dict[str, keras.KerasTensor]:
        """Return the model's outputs: those for the queue, and the loss.

        Raises:
            ValueError: if there are none.
        """
        like = next(iter(graph.rows.values()))
        with convoy.PipelineStage(graph.last):
            chosen = enumerate(jax.tree.leaves(self.tensors))
            results = {f"output_{number}": as_row(tensor, like) for number, tensor in chosen}
            if loss is not None:
                # The gradient of a loss with several elements is that of their sum.
                results[LOSS] = as_row(keras.ops.sum(loss), like)
        if not results:
            raise ValueError("The last stage returns nothing. Return a tensor.")
        return results

    def _executions_per_call(self, arrays: list[Any], repeat: int) -> int:
        sizes = [
            int(np.prod([size or 1 for size in array.shape])) * np.dtype(str(array.dtype)).itemsize
            for array in arrays
        ]
        execution = sum(sizes) * self.description.gradient_accumulation * self.description.replicas
        return max(1, min(repeat, DEVICE_CALL // execution))

    # Running ----------------------------------------------------------------------------------

    def run(self, outfeed: Outfeed, data: PipelineInput, repeat: int) -> None:
        """Run some executions, and put their outputs into the queue."""
        micro_batches = repeat * self.description.gradient_accumulation * self.description.replicas
        rows = data.rows(micro_batches)
        if self.description.optimizer_function is not None:
            callback = _OutfeedCallback(self, outfeed)
            self.model.fit(self._batches(rows), shuffle=False, callbacks=[callback], verbose=0)
            return
        for begin in range(0, micro_batches, self.rows):
            count = min(self.rows, micro_batches - begin)
            given = ((self._named(row),) for row in itertools.islice(rows, count))
            outputs = self.model.predict(given, verbose=0)
            self.put(outfeed, [outputs[name] for name in self.names])

    def put(self, outfeed: Outfeed, values: list[np.ndarray]) -> None:
        """Put the outputs of a device call into the queue."""
        packed = jax.tree.unflatten(jax.tree.structure(self.tensors), values)
        outfeed.put(
            packed, self.tensors, self.description.gradient_accumulation, self.description.replicas
        )

    def _batches(self, rows: Iterator[list[np.ndarray]]) -> Iterator[tuple[dict, dict]]:
        """Return inputs and targets; the target of an output is the index of its row."""
        for number, row in enumerate(rows):
            index = np.array([number % self.rows], np.int32)
            yield self._named(row), dict.fromkeys(self.names, index)

    def _named(self, row: list[np.ndarray]) -> dict[str, np.ndarray]:
        return {f"given_{number}": value for number, value in enumerate(row)}


class _OutfeedCallback(keras.callbacks.Callback):
    """Puts the outputs of each device call into the queue."""

    def __init__(self, network: Network, outfeed: Outfeed) -> None:
        super().__init__()
        self.network, self.outfeed, self.done = network, outfeed, 0

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        rows = (batch + 1 - self.done) * self.network.description.replicas
        self.done = batch + 1
        self.network.put(self.outfeed, [output.rows(rows) for output in self.network.outputs])
