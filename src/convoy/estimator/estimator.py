"""Estimators whose model function builds a network in one piece."""

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import convoy
import jax
import keras
import numpy as np
from convoy.arguments import whole_number
from convoy.checkpoint.folder import Folder
from convoy.checkpoint.store import Checkpoint
from convoy.estimator import checkpoints, user_functions
from convoy.estimator.callbacks import EvaluationCallback, TrainingCallback
from convoy.estimator.checkpoints import WarmStart
from convoy.estimator.hooks import Hook, LoggingHook, Run, SummaryHook, log
from convoy.estimator.input import Element, Signature, elements
from convoy.estimator.network import LOSS, PREDICTIONS, Network, output_names
from convoy.estimator.progress import ProgressCallback
from convoy.estimator.run_config import RunConfig
from convoy.estimator.spec import EstimatorSpec, ModeKeys, NetworkSpec
from convoy.types import Data, PyTree

INPUT_ARGUMENTS = ("mode", "params", "config", "input_context")


class Estimator:
    """Trains, evaluates and predicts with the network that a model function builds.

    The model function is called once for each mode, with symbolic tensors. It uses Keras layers,
    `keras.ops`, and JAX functions decorated with `convoy.estimator.function`.

    Weights are kept in the checkpoints of `model_dir`: `train` resumes from the newest one and
    writes another at its end, `evaluate` and `predict` read the newest one.

    Args:
        model_fn: a function that returns an `EstimatorSpec`. Its arguments are `features` and any
            of `labels`, `mode`, `params` and `config`.
        model_dir: folder of the checkpoints; by default that of the config.
        config: a `RunConfig`.
        params: parameters that are passed to both functions. `batch_size` in it is the batch size
            of arrays.
        warm_start_from: a checkpoint, a folder of checkpoints, or a `WarmStart`: the initial
            weights if `model_dir` has no checkpoint.

    Raises:
        ValueError: if an argument has the wrong type.

    Example:
    ```python
    def model_fn(features, labels, mode):
        x = keras.layers.Flatten()(features)
        logits = keras.layers.Dense(10)(x)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return convoy.estimator.EstimatorSpec(mode, logits, loss, optimizer="sgd")

    estimator = convoy.estimator.Estimator(model_fn, "run1")
    estimator.train(lambda: (x_train, y_train), steps=1000)
    estimator.evaluate(lambda: (x_test, y_test))
    ```
    """

    known_arguments: tuple[str, ...] = ("features", "labels", "mode", "params", "config")

    def __init__(
        self,
        model_fn: Callable[..., PyTree],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, PyTree] | None = None,
        warm_start_from: str | Path | WarmStart | None = None,
    ) -> None:
        user_functions.check_arguments(model_fn, "model function", self.known_arguments)
        if params is not None and not isinstance(params, Mapping):
            raise ValueError(f"params={params!r} is not a dict. Pass one.")
        config = config or RunConfig()
        folder = model_dir or config.model_dir or tempfile.mkdtemp(prefix="convoy-estimator-")
        self.model_fn = model_fn
        self.config = replace(config, model_dir=folder)
        self.params = dict(params or {})
        if isinstance(warm_start_from, (str, Path)):
            warm_start_from = WarmStart(warm_start_from)
        self.warm_start_from = warm_start_from
        self._networks: dict[tuple, Network] = {}

    @property
    def model_dir(self) -> Path:
        assert self.config.model_dir is not None
        return Path(self.config.model_dir)

    def latest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint in `model_dir`."""
        folder = Folder(self.model_dir)
        positions = folder.positions()
        return folder.at(positions[-1]) if positions else None

    def get_variable_names(self) -> list[str]:
        """Return the names of all arrays in the newest checkpoint."""
        return list(checkpoints.read(self.model_dir).arrays)

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return an array of the newest checkpoint."""
        return checkpoints.read(self.model_dir).arrays[name]

    # Training ---------------------------------------------------------------------------------

    def train(
        self,
        input_fn: Callable[..., Data],
        hooks: Sequence[Hook] = (),
        steps: int | None = None,
        max_steps: int | None = None,
    ) -> Self:
        """Train from the newest checkpoint on, and write another.

        Args:
            input_fn: a function of any of `mode`, `params` and `config`. Returns a dataset whose
                items are features, or features and labels, each the batch of one replica; or
                arrays, which are shuffled and repeated without end.
            hooks: hooks of the run.
            steps: number of steps; each takes a batch on every replica.
            max_steps: total number of steps, including earlier runs. If that many were trained
                already, nothing is trained. Without a limit, the run ends with the data.

        Returns:
            The estimator.

        Raises:
            ValueError: if both limits are given, or one is not a number of steps.
        """
        self._check_limits(steps, max_steps)
        folder = Folder(self.model_dir)
        newest = checkpoints.newest(folder)
        done = 0 if newest is None else checkpoints.global_step(newest)
        steps = self._steps_to_run(done, steps, max_steps)
        if steps == 0:
            log.info(f"Not trained: {done} steps were done before, of max_steps={max_steps}.")
            return self
        if self.config.seed is not None:
            keras.utils.set_random_seed(self.config.seed)
        network, data = self._open(ModeKeys.TRAIN, input_fn)
        self._restore(network, newest, training=True)
        folder.open_for_writing()
        try:
            run = Run(self, ModeKeys.TRAIN, done)
            callback = TrainingCallback(run, network, self._hooks(network, hooks), folder)
            batches = network.batches(_first_steps(data, network, steps))
            callbacks = [callback, ProgressCallback("training", steps)]
            with network.recorded(self.config.report):
                network.model.fit(batches, shuffle=False, callbacks=callbacks, verbose=0)
                callback.finish()
        finally:
            folder.close()
        if not run.stopped:
            self._check_trained(run.global_step - done, steps)
        return self

    def _check_limits(self, steps: int | None, max_steps: int | None) -> None:
        if steps is not None and max_steps is not None:
            raise ValueError("Both steps and max_steps were passed. Pass one of them.")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None:
                whole_number(name, value, "a number of steps")

    def _steps_to_run(self, done: int, steps: int | None, max_steps: int | None) -> int | None:
        return steps if max_steps is None else max(0, max_steps - done)

    def _check_evaluation_steps(self, steps: int | None) -> None:
        """Check `steps` of `evaluate`; here any number is accepted."""

    def _check_trained(self, trained: int, steps: int | None) -> None:
        if steps is not None and trained < steps:
            log.info(f"The data ended after {trained} of {steps} steps.")

    def _hooks(self, network: Network, given: Sequence[Hook]) -> list[Hook]:
        own: list[Hook] = []
        if self.config.log_every is not None:
            own.append(LoggingHook(every_steps=self.config.log_every))
        if self.config.summary_every is not None:
            own.append(SummaryHook(self.model_dir, self.config.summary_every))
        return [*own, *network.spec.hooks, *given]

    # Evaluation -------------------------------------------------------------------------------

    def evaluate(
        self,
        input_fn: Callable[..., Data],
        steps: int | None = None,
        hooks: Sequence[Hook] = (),
        checkpoint_path: str | Path | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """Compute loss and metrics of the newest checkpoint.

        Args:
            input_fn: as for `train`; arrays are read once, in order.
            steps: number of steps; by default all of the data.
            hooks: hooks of the run.
            checkpoint_path: a checkpoint other than the newest.
            name: name of the evaluation in the log.

        Returns:
            Numbers by name over all samples of all replicas: `loss`, the spec's metrics, and
            `global_step`.
        """
        self._check_evaluation_steps(steps)
        network, data = self._open(ModeKeys.EVAL, input_fn)
        callback = self._load(network, checkpoint_path, hooks)
        with network.recorded(self.config.report):
            first = _first_steps(data, network, steps)
            if network.spec.host_metrics is not None:
                results = self._evaluate_on_host(network, first, callback)
            else:
                callbacks = [callback, ProgressCallback("evaluation", steps)]
                logs = network.model.evaluate(
                    network.batches(first), callbacks=callbacks, verbose=0, return_dict=True
                )
                results = {name: float(metric.result()) for name, metric in network.metrics.items()}
                results[LOSS] = float(logs["loss"])
        callback.finish()
        results["global_step"] = callback.run.global_step
        values = ", ".join(f"{key} = {value:.6g}" for key, value in sorted(results.items()))
        log.info(f"Evaluation{f' {name}' if name else ''}: {values}")
        return results

    def _evaluate_on_host(
        self, network: Network, data: Iterator[Element], callback: EvaluationCallback
    ) -> dict[str, float]:
        assert network.spec.host_metrics is not None
        compute, tensors = network.spec.host_metrics
        outputs = network.predict(data, callback)
        loss = {LOSS: np.mean(outputs[LOSS])} if LOSS in outputs else {}
        values = jax.tree.map(outputs.get, output_names(tensors))
        args, kwargs = user_functions.as_arguments(values)
        results = compute(*args, **kwargs)
        user_functions.check_returned("The function for metrics", results, Mapping, "a dict")
        return {name: float(np.asarray(value)) for name, value in (loss | dict(results)).items()}

    # Prediction -------------------------------------------------------------------------------

    def predict(
        self,
        input_fn: Callable[..., Data],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Hook] = (),
        checkpoint_path: str | Path | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[PyTree]:
        """Compute predictions with the newest checkpoint, in the order of the data.

        Args:
            input_fn: as for `evaluate`; labels are ignored.
            predict_keys: keys of a dict of predictions to return; by default all.
            hooks: hooks of the run.
            checkpoint_path: a checkpoint other than the newest.
            yield_single_examples: whether to yield single samples instead of batches.

        Yields:
            Arrays, or dicts of arrays. Device calls run as their results are consumed.
        """
        network, data = self._open(ModeKeys.PREDICT, input_fn)
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        unknown = sorted(set(keys or ()) - set(network.outputs))
        if unknown:
            raise ValueError(
                f"predict_keys: {unknown[0]!r} is not a prediction. Pass some of "
                f"{', '.join(network.outputs)}."
            )
        callback = self._load(network, checkpoint_path, hooks)
        with network.recorded(self.config.report):
            group = network.steps_per_execution * network.batches_per_step
            while batches := list(itertools.islice(data, group)):
                outputs = network.predict(batches, callback)
                chosen = {name: outputs[name] for name in outputs if keys is None or name in keys}
                has_names = isinstance(network.spec.predictions, Mapping)
                predictions = chosen if has_names else chosen[PREDICTIONS]
                start = 0
                for batch in batches:
                    stop = start + batch.samples
                    rows = range(start, stop) if yield_single_examples else [slice(start, stop)]
                    for row in rows:
                        yield jax.tree.map(lambda leaf, row=row: leaf[row], predictions)
                    start = stop
                if callback.run.stopped:
                    break
        callback.finish()

    # Networks ---------------------------------------------------------------------------------

    def _strategy(self) -> convoy.Strategy:
        if self.config.strategy is None:
            self.config = replace(self.config, strategy=convoy.Strategy())
        assert self.config.strategy is not None
        return self.config.strategy

    def _open(
        self, mode: ModeKeys, input_fn: Callable[..., Data]
    ) -> tuple[Network, Iterator[Element]]:
        """Call both functions; return the network and its data."""
        user_functions.check_arguments(input_fn, "input function", INPUT_ARGUMENTS)
        params = self._params(mode)
        available = {"mode": mode, "params": params, "config": self.config, "input_context": None}
        returned = user_functions.call_with_named(input_fn, available)
        data = elements(returned, mode, params.get("batch_size"))
        first = next(data, None)
        if first is None:
            raise ValueError("The input function's data has no batch. Return at least one.")
        signature = Signature(first)
        key = (mode, signature.key)
        if key not in self._networks:
            with self._strategy().scope():
                tensors = signature.tensors()
                built = self._build(mode, params, tensors)
            self._networks[key] = Network(built, tensors, signature, self.config)
        return self._networks[key], itertools.chain([first], data)

    def _params(self, mode: ModeKeys) -> dict[str, PyTree]:
        return dict(self.params)

    def _build(self, mode: ModeKeys, params: dict[str, PyTree], tensors: Element) -> NetworkSpec:
        """Call the model function, and check its result."""
        names = user_functions.argument_names(self.model_fn)
        if tensors.labels is not None and names is not None and "labels" not in names:
            raise ValueError(
                "The input function returns labels, but the model function has no argument "
                "`labels`. Add it, or return features only."
            )
        return self._network_spec(self._call_model_fn(mode, params, **tensors._asdict()))

    def _call_model_fn(
        self, mode: ModeKeys, params: dict[str, PyTree], **tensors: PyTree
    ) -> PyTree:
        available = {"mode": mode, "params": params, "config": self.config, **tensors}
        return user_functions.call_with_named(self.model_fn, available)

    def _network_spec(self, returned: PyTree) -> NetworkSpec:
        user_functions.check_returned(
            "The model function", returned, EstimatorSpec, "an EstimatorSpec", ValueError
        )
        return NetworkSpec(returned)

    def _load(
        self, network: Network, checkpoint_path: str | Path | None, hooks: Sequence[Hook]
    ) -> EvaluationCallback:
        """Restore the weights of a network, and return the callback of its run."""
        if checkpoint_path is None:
            checkpoint = checkpoints.newest(Folder(self.model_dir))
        else:
            checkpoint = checkpoints.read(checkpoint_path)
        if checkpoint is None:
            log.warning(f"{self.model_dir} has no checkpoint: the weights are initial ones.")
        step = self._restore(network, checkpoint, training=False)
        run = Run(self, network.spec.mode, step)
        return EvaluationCallback(run, [*network.spec.hooks, *hooks])

    def _restore(self, network: Network, checkpoint: Checkpoint | None, *, training: bool) -> int:
        """Restore a network from a checkpoint, else by the warm start; return its global step."""
        if checkpoint is None:
            if self.warm_start_from is not None:
                checkpoints.warm_start(network.model, self.warm_start_from)
            return 0
        checkpoints.restore(network.model, checkpoint, training=training)
        return checkpoints.global_step(checkpoint)


def _first_steps(data: Iterator[Element], network: Network, steps: int | None) -> Iterator[Element]:
    """Return the batches of the first steps.

    Raises:
        ValueError: if the last weight update would be incomplete.
    """
    if steps is None:
        return data
    count = network.gradient_accumulation
    if steps % count:
        raise ValueError(
            f"{steps} steps are not a multiple of the {count} micro-batches of a weight update. "
            f"Pass {-(-steps // count) * count}."
        )
    return itertools.islice(data, steps * network.batches_per_step)
