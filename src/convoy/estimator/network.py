"""The Keras model of an estimator, built from what a model function returned."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import convoy
import jax
import jax.numpy as jnp
import keras
import numpy as np
from convoy import cross_replica
from convoy.engine.prepared_model import GradientMap, PreparedModel
from convoy.estimator.input import Element, Signature
from convoy.estimator.jax_function import JaxOperation, is_symbolic
from convoy.estimator.run_config import RunConfig
from convoy.estimator.spec import Accumulation, ModeKeys, NetworkSpec, Stages
from convoy.pipeline.stages import calls_of, complete_assignment
from convoy.report.files import new_folder
from convoy.report.recording import Recording
from convoy.types import PyTree

LOSS, PREDICTIONS = "loss", "predictions"


class OutputLoss(keras.losses.Loss):
    """A loss that the network itself computes, as one of its outputs."""

    def call(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        return y_pred


class StepValues(keras.metrics.Metric):
    """Keeps the value of a tensor at every step of a device call, as the mean over replicas.

    Args:
        shape: shape of the tensor.
        steps: number of steps in a device call.
        dtype: dtype of the values.
    """

    def __init__(self, shape: Sequence[int], steps: int, dtype: str = "float32") -> None:
        super().__init__(name="recorded", dtype=dtype)
        self.kept = self.add_variable((steps, *shape), "zeros", dtype, name="kept")
        # Values are summed over replicas; the count is the same on all of them.
        self.count = self.add_variable((), "zeros", "int32", aggregation="none", name="count")

    def update_state(
        self, y_true: jax.Array, y_pred: jax.Array, sample_weight: jax.Array | None = None
    ) -> None:
        """Keep `y_pred`. The other arguments are ignored."""
        value = jnp.asarray(y_pred, self.kept.dtype) / cross_replica.count()
        step = jnp.asarray(self.count.value, jnp.int32)
        kept = jnp.asarray(self.kept.value)
        self.kept.assign(kept.at[step].add(value.astype(kept.dtype), mode="drop"))
        self.count.assign(step + 1)

    def result(self) -> jax.Array:
        """Return the mean of all kept values, since Keras expects a scalar."""
        count = jnp.maximum(jnp.asarray(self.count.value, jnp.float32), 1)
        kept = jnp.asarray(self.kept.value, jnp.float32)
        return jnp.sum(jnp.mean(kept.reshape(kept.shape[0], -1), axis=1)) / count

    def values(self) -> np.ndarray:
        """Return the kept values, one row per step."""
        return np.asarray(self.kept.value)[: int(np.asarray(self.count.value))]


def reset_on_device(variable: keras.Variable) -> None:
    """Set a variable to zero, without moving it to another device."""
    value = variable.value
    zeros = np.zeros(value.shape, variable.dtype)
    # An uncommitted array in the place of a committed one would compile another program.
    variable.assign(jax.device_put(zeros, value.sharding if value.committed else None))


def build_model(
    strategy: convoy.Strategy,
    inputs: Mapping[str, keras.KerasTensor],
    outputs: Mapping[str, keras.KerasTensor],
    *,
    gradient_map: GradientMap | None,
    stages: Stages | None,
    accumulation: Accumulation | None,
    name: str | None = None,
    **compile_arguments: PyTree,
) -> keras.Model:
    """Return a compiled model on the devices of a strategy, with its options set.

    Args:
        strategy: the strategy.
        inputs: symbolic inputs by name.
        outputs: symbolic outputs by name.
        gradient_map: a function that changes the gradients of every micro-batch.
        stages: pipeline options, if layers are in pipeline stages.
        accumulation: gradient accumulation; by default that of the strategy.
        name: name of the model.
        compile_arguments: arguments of `keras.Model.compile`.
    """
    with strategy.scope():
        model = keras.Model(dict(inputs), dict(outputs), name=name)
    PreparedModel.of(model).gradient_map = gradient_map
    model.compile(**compile_arguments)
    if stages is not None:
        if stages.has_gaps:
            model.set_pipeline_stage_assignment(complete_assignment(calls_of(model)))
        model.set_pipelining_options(**stages.options)
    if accumulation is not None:
        model.set_gradient_accumulation(**asdict(accumulation))
    return model


@dataclass(frozen=True)
class Output:
    """An output of the network.

    Attributes:
        tensor: the symbolic tensor.
        labels: name of the input that it is compared with; `None` if there is none.
    """

    tensor: keras.KerasTensor
    labels: str | None = None


class Network:
    """A model for one mode, with its inputs and outputs by name.

    Args:
        built: the result of calling the model function.
        tensors: the symbolic inputs that were passed to it.
        signature: their shapes and dtypes.
        config: the estimator's configuration, with a strategy. The network is split into its
            number of stages automatically, unless it was written in stages.

    Raises:
        ValueError: if the parts of the spec do not fit together.
    """

    def __init__(
        self, built: NetworkSpec, tensors: Element, signature: Signature, config: RunConfig
    ) -> None:
        spec, stages = built.spec, built.stages
        strategy = built.strategy or config.strategy
        assert strategy is not None
        self.spec, self.signature, self.strategy = spec, signature, strategy
        self.inputs = tensors.named()
        self.steps_per_execution = config.steps_per_execution
        self.outputs: dict[str, Output] = {}
        self.metrics: dict[str, keras.metrics.Metric] = {}
        self.step_values: dict[str, StepValues] = {}
        self._output_losses: dict[str, keras.losses.Loss] = {}
        self._output_metrics: dict[str, list[keras.metrics.Metric]] = {}
        self._recording: Recording | None = None
        options = built.accumulation or strategy.execution_config
        training = spec.mode == ModeKeys.TRAIN
        self.gradient_accumulation = options.gradient_accumulation if training else 1
        devices_per_replica = config.stages if stages is None else stages.devices_per_replica
        replicas = max(1, len(strategy.devices) // devices_per_replica)
        self.batches_per_step = replicas if strategy.execution_config.batch == "replica" else 1
        """Number of batches of the data that one step takes."""
        with contextlib.nullcontext() if stages is None else convoy.PipelineStage(stages.last):
            self._add_outputs()
        self.model = build_model(
            self.strategy,
            self.inputs,
            {name: output.tensor for name, output in self.outputs.items()},
            gradient_map=built.gradient_map,
            stages=stages,
            accumulation=built.accumulation
            and replace(built.accumulation, gradient_accumulation=self.gradient_accumulation),
            optimizer=spec.optimizer if training else "sgd",
            loss=self._output_losses or None,
            metrics=self._output_metrics or None,
            steps_per_execution=config.steps_per_execution,
        )
        if stages is None and config.stages > 1:
            convoy.split(self.model, config.stages, batch_size=signature.element.samples)

    # Outputs ----------------------------------------------------------------------------------

    def _add_outputs(self) -> None:
        spec = self.spec
        if spec.mode == ModeKeys.PREDICT:
            self._add_results(spec.predictions)
            return
        if spec.mode == ModeKeys.EVAL and spec.host_metrics is not None:
            self._add_results(spec.host_metrics[1])
            if is_symbolic(spec.loss):
                self._add_results({LOSS: spec.loss})
            return
        if is_symbolic(spec.loss):
            self.outputs[LOSS] = Output(self._loss_by_sample(spec.loss))
            self._output_losses[LOSS] = OutputLoss(name=LOSS)
        else:
            self.outputs[PREDICTIONS] = self._compared_predictions()
            self._output_losses[PREDICTIONS] = keras.losses.get(spec.loss)
        if spec.mode == ModeKeys.EVAL:
            self._add_metrics()
        else:
            self._add_logged()

    def _add_results(self, tensors: PyTree) -> None:
        names = jax.tree.leaves(output_names(tensors))
        for name, tensor in zip(names, jax.tree.leaves(tensors), strict=True):
            self.outputs[name] = Output(self._by_sample(tensor))

    def _compared_predictions(self) -> Output:
        """Return the predictions, to be compared with the labels."""
        labels = [name for name in self.inputs if name.startswith("labels")]
        if not is_symbolic(self.spec.predictions) or len(labels) != 1:
            raise ValueError(
                "A Keras loss or metric by itself compares one tensor of predictions with one of "
                "labels. Pass a tensor as the loss, and (metric, labels, tensor) as a metric."
            )
        return Output(self.spec.predictions, labels[0])

    def _add_metrics(self) -> None:
        for number, (name, given) in enumerate(self.spec.metrics.items()):
            if isinstance(given, tuple):
                metric, labels, tensor = given
                output = f"metric_{number}"
                self.outputs[output] = Output(tensor, self._input_name(labels, name))
            else:
                metric, output = given, PREDICTIONS
                self.outputs[output] = self._compared_predictions()
            if not isinstance(metric, keras.metrics.Metric):
                metric = keras.metrics.get(metric)
            self.metrics[name] = metric
            self._output_metrics.setdefault(output, []).append(metric)

    def _input_name(self, labels: keras.KerasTensor, metric: str) -> str:
        for name, tensor in self.inputs.items():
            if tensor is labels:
                return name
        raise ValueError(
            f"The metric {metric!r} compares with a tensor that is not one of the labels passed to "
            "the model function. Use host_metrics for it."
        )

    def _add_logged(self) -> None:
        samples = self.signature.element.samples
        steps = max(self.steps_per_execution, self.gradient_accumulation)
        for number, (name, tensor) in enumerate(self.spec.logged.items()):
            shape = [samples if size is None else size for size in tensor.shape]
            self.step_values[name] = StepValues(shape, steps)
            self.outputs[f"logged_{number}"] = Output(tensor)
            self._output_metrics[f"logged_{number}"] = [self.step_values[name]]

    def _loss_by_sample(self, loss: keras.KerasTensor) -> keras.KerasTensor:
        """Return a loss as one value per sample."""
        if len(loss.shape) < 2:
            return self._by_sample(loss)
        mean = JaxOperation(lambda values: jnp.mean(values.reshape(values.shape[0], -1), axis=1))
        return mean(loss)

    def _by_sample(self, tensor: keras.KerasTensor) -> keras.KerasTensor:
        """Return a tensor with one row per sample; a scalar is repeated for each."""
        if len(tensor.shape) > 0:
            return tensor
        like = next(iter(self.inputs.values()))
        repeat = JaxOperation(lambda value, rows: jnp.broadcast_to(value, rows.shape[:1]))
        return repeat(tensor, like)

    # Inputs -----------------------------------------------------------------------------------

    def batches(self, elements: Iterable[Element]) -> Iterator[tuple[dict, dict]]:
        """Return inputs and targets for `fit` and `evaluate`."""
        for element in elements:
            named = element.named()
            unused = np.zeros(element.samples, np.float32)
            targets = {
                name: unused if output.labels is None else named[output.labels]
                for name, output in self.outputs.items()
            }
            yield named, targets

    def predict(
        self, elements: Iterable[Element], callback: keras.callbacks.Callback
    ) -> dict[str, np.ndarray]:
        """Return the outputs by name, for all samples."""
        inputs = ((element.named(),) for element in elements)
        return self.model.predict(inputs, callbacks=[callback], verbose=0)

    # State ------------------------------------------------------------------------------------

    def reset_metrics(self) -> None:
        """Reset the loss and the kept values of steps, on their devices."""
        for variable in self.model.metrics_variables:
            reset_on_device(variable)

    @contextlib.contextmanager
    def recorded(self, folder: str | os.PathLike[str] | None) -> Iterator[None]:
        """Record what the network runs in the block, if a folder for reports is given.

        All runs of a network go into one report, since they run the same programs.
        """
        if folder is None:
            yield
            return
        if self._recording is None:
            self._recording = Recording(
                new_folder(folder), self.strategy.devices, self._metric_names()
            )
        self._recording.observe(self.strategy)
        try:
            yield
        finally:
            self._recording.stop_observing()

    def _metric_names(self) -> dict[str, str]:
        """Return the user's metric names by Keras's names, which begin with the output's name."""
        own = {metric: name for name, metric in self.metrics.items()}
        own |= {values: f"logged {name}" for name, values in self.step_values.items()}
        return {
            f"{output}_{metric.name}": own[metric]
            for output, metrics in self._output_metrics.items()
            for metric in metrics
        }


def output_names(tensors: PyTree) -> PyTree:
    """Return the names of the model's outputs for some tensors, in the same structure."""
    if isinstance(tensors, Mapping):
        return {name: name for name in tensors}
    if isinstance(tensors, (list, tuple)):
        return [f"output_{number}" for number in range(len(tensors))]
    return PREDICTIONS
