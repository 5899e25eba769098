"""From what a model function returned to a Keras model that runs on the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import convoy
import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy.engine.prepared_model import PreparedModel
from convoy.estimator.function import Function, is_tensor
from convoy.estimator.input import Element, Signature
from convoy.estimator.recorded import Recorded
from convoy.estimator.spec import Accumulated, Built, ModeKeys, Stages
from convoy.pipeline.stages import calls_of, complete_assignment
from convoy.report.recording import Recording

LOSS, PREDICTIONS = "loss", "predictions"


class Given(keras.losses.Loss):
    """The loss that the network itself computes."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        del y_true
        return y_pred


@dataclass(frozen=True)
class Output:
    """A result of the network.

    Attributes:
        tensor: what it is.
        labels: the name of the input that it is compared with; `None` if with nothing.
    """

    tensor: Any
    labels: str | None = None


class Network:
    """A model in one mode, with what it takes and gives.

    Args:
        built: what came of calling the model function.
        tensors: the inputs that it was given.
        signature: their shapes and types.
        strategy: where it runs.
        steps_per_execution: steps in one device call.
        automatic_stages: into how many stages it is divided, if it was not written in some.

    Raises:
        ValueError: if the spec's parts do not fit together.
    """

    def __init__(
        self,
        built: Built,
        tensors: Element,
        signature: Signature,
        strategy: convoy.Strategy,
        steps_per_execution: int,
        automatic_stages: int = 1,
    ) -> None:
        spec, stages = built.spec, built.stages
        self.spec, self.signature, self.strategy = spec, signature, built.strategy or strategy
        self.inputs = tensors.named()
        self.steps_per_execution = steps_per_execution
        self.metrics: dict[str, keras.metrics.Metric] = {}
        self.recorded: dict[str, Recorded] = {}
        self.recording: Recording | None = None
        """What is told of its runs, if a report was asked for."""
        own = self.strategy.execution_config.gradient_accumulation
        self._accumulated = own if built.accumulated is None else built.accumulated.count
        self._width = automatic_stages if stages is None else stages.width
        # What is added to the network belongs to its last stage.
        with contextlib.nullcontext() if stages is None else convoy.PipelineStage(stages.last):
            self.outputs, loss, metrics = self._parts()
        with self.strategy.scope():
            self.model = keras.Model(
                self.inputs, {name: output.tensor for name, output in self.outputs.items()}
            )
        PreparedModel.of(self.model).gradient_map = built.gradient_map
        self.model.compile(
            optimizer=spec.optimizer if spec.mode == ModeKeys.TRAIN else "sgd",
            loss=loss,
            metrics=metrics,
            steps_per_execution=steps_per_execution,
        )
        if stages is not None:
            self._run_in_stages(stages)
        if built.accumulated is not None:
            self._accumulate(built.accumulated)
        if stages is None and automatic_stages > 1:
            convoy.split(self.model, automatic_stages, batch_size=signature.element.samples)

    def _run_in_stages(self, stages: Stages) -> None:
        if stages.has_gaps:
            self.model.set_pipeline_stage_assignment(complete_assignment(calls_of(self.model)))
        self.model.set_pipelining_options(
            schedule=stages.schedule,
            device_mapping=stages.device_mapping,
            recompute=stages.recompute,
        )

    def _accumulate(self, accumulated: Accumulated) -> None:
        self.model.set_gradient_accumulation(
            self.accumulated, reduction=accumulated.reduction, dtype=accumulated.dtype
        )

    # What the model gives ---------------------------------------------------------------------

    def _parts(self) -> tuple[dict[str, Output], Any, Any]:
        """Return outputs, losses and metrics by the names of outputs."""
        spec = self.spec
        if spec.mode == ModeKeys.PREDICT:
            return self._rows(_by_name(spec.predictions)), None, None
        if spec.host_metrics is not None and spec.mode == ModeKeys.EVAL:
            tensors = _by_name(spec.host_metrics[1])
            if is_tensor(spec.loss):
                tensors[LOSS] = spec.loss
            return self._rows(tensors), None, None
        outputs: dict[str, Output] = {}
        losses: dict[str, Any] = {}
        metrics: dict[str, list[keras.metrics.Metric]] = {}
        if is_tensor(spec.loss):
            outputs[LOSS] = Output(self._by_sample(spec.loss))
            losses[LOSS] = Given(name=LOSS)
        else:
            outputs[PREDICTIONS] = self._compared()
            losses[PREDICTIONS] = keras.losses.get(spec.loss)
        if spec.mode == ModeKeys.EVAL:
            self._add_metrics(outputs, metrics)
        else:
            self._add_logged(outputs, metrics)
        return outputs, losses, metrics

    def _rows(self, tensors: Mapping[str, Any]) -> dict[str, Output]:
        return {name: Output(self._rowwise(tensor)) for name, tensor in tensors.items()}

    def _compared(self) -> Output:
        """Return the predictions, to be compared with the labels."""
        labels = [name for name in self.inputs if name.startswith("labels")]
        if not is_tensor(self.spec.predictions) or len(labels) != 1:
            raise ValueError(
                "A Keras loss or metric by itself compares one tensor of predictions with one of "
                "labels. Pass a tensor as the loss, and (metric, labels, tensor) as a metric."
            )
        return Output(self.spec.predictions, labels[0])

    def _add_metrics(self, outputs: dict[str, Output], metrics: dict[str, list[Any]]) -> None:
        for number, (name, given) in enumerate(self.spec.metrics.items()):
            if isinstance(given, tuple):
                metric, labels, tensor = given
                place = f"metric_{number}"
                outputs[place] = Output(tensor, self._name_of(labels, name))
            else:
                metric, place = given, PREDICTIONS
                outputs[place] = self._compared()
            if not isinstance(metric, keras.metrics.Metric):
                metric = keras.metrics.get(metric)
            self.metrics[name] = metric
            metrics.setdefault(place, []).append(metric)

    def _name_of(self, labels: Any, metric: str) -> str:
        for name, tensor in self.inputs.items():
            if tensor is labels:
                return name
        raise ValueError(
            f"The metric {metric!r} compares with a tensor that is not among the labels as they "
            "were given. Use host_metrics for it."
        )

    def _add_logged(self, outputs: dict[str, Output], metrics: dict[str, list[Any]]) -> None:
        samples = self.signature.element.samples
        for number, (name, tensor) in enumerate(self.spec.logged.items()):
            shape = [samples if size is None else size for size in tensor.shape]
            self.recorded[name] = Recorded(shape, max(self.steps_per_execution, self._accumulated))
            outputs[f"logged_{number}"] = Output(tensor)
            metrics[f"logged_{number}"] = [self.recorded[name]]

    def _by_sample(self, loss: Any) -> Any:
        """Return a loss as a value for each sample."""
        if len(loss.shape) == 0:
            return self._rowwise(loss)
        if len(loss.shape) == 1:
            return loss
        return Function(lambda values: jnp.mean(values.reshape(values.shape[0], -1), axis=1))(loss)

    def _rowwise(self, tensor: Any) -> Any:
        """Return a tensor that has a row for each sample: a scalar once for each."""
        if len(tensor.shape) > 0:
            return tensor
        like = next(iter(self.inputs.values()))
        return Function(lambda value, rows: jnp.broadcast_to(value, rows.shape[:1]))(tensor, like)

    # What the model takes ---------------------------------------------------------------------

    def batches(self, elements: Iterable[Element]) -> Iterator[tuple[dict, dict]]:
        """Return inputs and targets for `fit` and `evaluate`."""
        for element in elements:
            named = element.named()
            nothing = np.zeros(element.samples, np.float32)
            targets = {
                name: nothing if output.labels is None else named[output.labels]
                for name, output in self.outputs.items()
            }
            yield named, targets

    def inputs_only(self, elements: Iterable[Element]) -> Iterator[tuple[dict]]:
        """Return inputs for `predict`."""
        for element in elements:
            yield (element.named(),)

    # Its state --------------------------------------------------------------------------------

    def forget(self) -> None:
        """Have loss and recorded values begin anew, where they are."""
        for variable in self.model.metrics_variables:
            value = variable.value
            zeros = np.zeros(value.shape, variable.dtype)
            # Committed as before, or the next device call would be another program.
            variable.assign(jax.device_put(zeros, value.sharding if value.committed else None))

    @property
    def accumulated(self) -> int:
        """Micro-batches of a weight update; 1 where there is none."""
        return self._accumulated if self.spec.mode == ModeKeys.TRAIN else 1

    @property
    def batches_per_step(self) -> int:
        """How many batches of the data a step takes."""
        return self.replicas if self.strategy.execution_config.batch == "replica" else 1

    @property
    def replicas(self) -> int:
        """Copies of the network that run side by side."""
        return max(1, len(self.strategy.devices) // self._width)


def _by_name(tensors: Any) -> dict[str, Any]:
    """Return tensors by names that outputs of a model can have."""
    if isinstance(tensors, Mapping):
        return dict(tensors)
    if isinstance(tensors, (list, tuple)):
        return {f"output_{number}": tensor for number, tensor in enumerate(tensors)}
    return {PREDICTIONS: tensors}
