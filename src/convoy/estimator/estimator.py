"""Estimators whose model function builds a network in one piece."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import convoy
import jax
import keras
import numpy as np
from convoy.estimator import arguments, saved
from convoy.estimator.config import RunConfig
from convoy.estimator.hooks import Hook, LoggingHook, Run, log
from convoy.estimator.input import Element, Signature, elements
from convoy.estimator.network import LOSS, PREDICTIONS, Network
from convoy.estimator.report import reported
from convoy.estimator.saved import Saved, WarmStart
from convoy.estimator.spec import Built, EstimatorSpec, ModeKeys
from convoy.estimator.summary import SummaryHook
from convoy.estimator.watch import WatchEvaluation, WatchTraining

MODEL_ARGUMENTS = ("features", "labels", "mode", "params", "config")
INPUT_ARGUMENTS = ("mode", "params", "config", "input_context")


class Estimator:
    """Trains, evaluates and predicts with what a model function builds.

    The function is called once for each mode. The tensors that it is given hold no numbers yet; it
    builds with Keras layers, `keras.ops`, and JAX functions under `convoy.estimator.function`.

    Weights live in the checkpoints of `model_dir`: `train` goes on from the newest and writes
    another at its end, `evaluate` and `predict` read the newest.

    Args:
        model_fn: takes `features`, and of `labels`, `mode`, `params` and `config` what it names.
            Returns an `EstimatorSpec`.
        model_dir: where checkpoints are; by default that of the config.
        config: a `RunConfig`.
        params: handed to both functions. `batch_size` in it is that of arrays.
        warm_start_from: a checkpoint, a folder of them, or a `WarmStart`: the weights to begin
            with if `model_dir` has none.

    Raises:
        ValueError: if an argument is none of these.

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

    known_arguments: tuple[str, ...] = MODEL_ARGUMENTS

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: str | Path | WarmStart | None = None,
    ) -> None:
        arguments.check(model_fn, "model function", self.known_arguments)
        if params is not None and not isinstance(params, Mapping):
            raise ValueError(f"params={params!r} is not a dict.")
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
        positions = self._saved.folder.positions()
        return self._saved.folder.at(positions[-1]) if positions else None

    def get_variable_names(self) -> list[str]:
        """Return the names of all that the newest checkpoint holds."""
        return list(saved.read(self.model_dir).arrays)

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return a value of the newest checkpoint."""
        return saved.read(self.model_dir).arrays[name]

    # Training ---------------------------------------------------------------------------------

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Hook] = (),
        steps: int | None = None,
        max_steps: int | None = None,
    ) -> Self:
        """Train from the newest checkpoint on, and write another.

        Args:
            input_fn: takes what it names of `mode`, `params` and `config`. Returns a data set
                whose items are features, or features and labels, of one replica's batch; or
                arrays of them, which are shuffled and gone through as often as it takes.
            hooks: told of the run.
            steps: how many; each takes a batch on every replica.
            max_steps: how many in all, those of earlier runs included. Nothing is done if there
                were as many. Without any limit the run ends with the data.

        Returns:
            The estimator.

        Raises:
            ValueError: if both limits are given, or one is not a number of steps.
        """
        self._check_limits(steps, max_steps)
        checkpoints = self._saved
        newest = checkpoints.newest()
        done = 0 if newest is None else saved.global_step(newest[1])
        steps = self._steps_to_run(done, steps, max_steps)
        if steps == 0:
            log.info(f"Not trained: {done} steps were done before, of max_steps={max_steps}.")
            return self
        if self.config.seed is not None:
            keras.utils.set_random_seed(self.config.seed)
        network, data = self._open(ModeKeys.TRAIN, input_fn)
        if newest is not None:
            saved.restore(network.model, newest[1], training=True)
        elif self.warm_start_from is not None:
            saved.warm_start(network.model, self.warm_start_from)
        checkpoints.folder.open_for_writing()
        try:
            run = Run(self, ModeKeys.TRAIN, done)
            watch = WatchTraining(run, network, self._hooks(network, hooks), checkpoints)
            with self._reported(network):
                network.model.fit(
                    network.batches(_first(data, network, steps)),
                    shuffle=False,
                    callbacks=[watch],
                    verbose=0,
                )
                watch.finish()
        finally:
            checkpoints.folder.close()
        if not run.stopped:
            self._check_trained(run.global_step - done, steps)
        return self

    def _check_limits(self, steps: int | None, max_steps: int | None) -> None:
        if steps is not None and max_steps is not None:
            raise ValueError("Both steps and max_steps were passed. Pass one of them.")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and (isinstance(value, bool) or value < 1):
                raise ValueError(f"{name}={value!r} is not a number of steps. Pass 1 or more.")

    def _steps_to_run(self, done: int, steps: int | None, max_steps: int | None) -> int | None:
        return steps if max_steps is None else max(0, max_steps - done)

    def _check_loops(self, steps: int | None) -> None:
        """Refuse steps that do not fill device calls, where that is a rule; here it is none."""

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
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Hook] = (),
        checkpoint_path: str | Path | None = None,
        name: str | None = None,
    ) -> dict[str, float]:
        """Compute loss and metrics of the newest checkpoint.

        Args:
            input_fn: as for `train`; arrays are gone through once, in their order.
            steps: how many; by default all of the data.
            hooks: told of the run.
            checkpoint_path: a checkpoint other than the newest.
            name: of the evaluation, for the log.

        Returns:
            Numbers by name: `loss`, the spec's metrics, and `global_step`. They are those of all
            samples of all replicas.
        """
        self._check_loops(steps)
        network, data = self._open(ModeKeys.EVAL, input_fn)
        step = self._load(network, checkpoint_path)
        run = Run(self, ModeKeys.EVAL, step)
        watch = WatchEvaluation(run, [*network.spec.hooks, *hooks])
        with self._reported(network):
            compute = self._on_host if network.spec.host_metrics is not None else self._on_devices
            results = compute(network, _first(data, network, steps), [watch])
        watch.finish()
        results["global_step"] = step
        shown = ", ".join(f"{key} = {value:.6g}" for key, value in sorted(results.items()))
        log.info(f"Evaluation{f' {name}' if name else ''}: {shown}")
        return results

    def _on_devices(
        self, network: Network, data: Iterator[Element], callbacks: list[Any]
    ) -> dict[str, float]:
        logs = network.model.evaluate(
            network.batches(data), callbacks=callbacks, verbose=0, return_dict=True
        )
        found = {name: float(metric.result()) for name, metric in network.metrics.items()}
        return found | {LOSS: float(logs["loss"])}

    def _on_host(
        self, network: Network, data: Iterator[Element], callbacks: list[Any]
    ) -> dict[str, float]:
        assert network.spec.host_metrics is not None
        compute, tensors = network.spec.host_metrics
        outputs = network.model.predict(network.inputs_only(data), callbacks=callbacks, verbose=0)
        loss = {LOSS: np.mean(outputs[LOSS])} if LOSS in outputs else {}
        if isinstance(tensors, Mapping):
            results = compute(**{name: outputs[name] for name in tensors})
        elif isinstance(tensors, (list, tuple)):
            results = compute(*(outputs[f"output_{n}"] for n in range(len(tensors))))
        else:
            results = compute(outputs[PREDICTIONS])
        if not isinstance(results, Mapping):
            raise TypeError(
                f"The function for metrics returned {type(results).__name__}, not a dict."
            )
        return {name: float(np.asarray(value)) for name, value in (loss | dict(results)).items()}

    # Prediction -------------------------------------------------------------------------------

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Hook] = (),
        checkpoint_path: str | Path | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Compute predictions by the newest checkpoint, in the order of the data.

        Args:
            input_fn: as for `evaluate`; labels are left out.
            predict_keys: which of a dict of predictions.
            hooks: told of the run.
            checkpoint_path: a checkpoint other than the newest.
            yield_single_examples: whether samples come one by one, else by batches.

        Yields:
            Arrays, or dicts of them. As many device calls run as are asked for.
        """
        network, data = self._open(ModeKeys.PREDICT, input_fn)
        step = self._load(network, checkpoint_path)
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        self._check_keys(network, keys)
        run = Run(self, ModeKeys.PREDICT, step)
        watch = WatchEvaluation(run, [*network.spec.hooks, *hooks])
        with self._reported(network):
            group = network.steps_per_execution * network.batches_per_step
            while batches := list(itertools.islice(data, group)):
                outputs = network.model.predict(
                    network.inputs_only(batches), callbacks=[watch], verbose=0
                )
                start = 0
                for batch in batches:
                    rows = slice(start, start := start + batch.samples)
                    part = jax.tree.map(lambda leaf, rows=rows: leaf[rows], outputs)
                    yield from self._handed_out(network, part, keys, yield_single_examples)
                if run.stopped:
                    break
        watch.finish()

    def _check_keys(self, network: Network, keys: Sequence[str] | None) -> None:
        unknown = sorted(set(keys or ()) - set(network.outputs))
        if unknown:
            raise ValueError(
                f"predict_keys: there is no prediction {unknown[0]!r}. There are "
                f"{', '.join(network.outputs)}."
            )

    def _handed_out(
        self, network: Network, part: dict[str, Any], keys: Sequence[str] | None, singly: bool
    ) -> Iterator[Any]:
        chosen = {name: value for name, value in part.items() if keys is None or name in keys}
        plain = not isinstance(network.spec.predictions, Mapping)
        if not singly:
            yield chosen[PREDICTIONS] if plain else chosen
            return
        for row in range(len(next(iter(chosen.values())))):
            sample = {name: value[row] for name, value in chosen.items()}
            yield sample[PREDICTIONS] if plain else sample

    # Networks ---------------------------------------------------------------------------------

    @property
    def _saved(self) -> Saved:
        return Saved(self.model_dir, self.config.keep)

    def _strategy(self) -> convoy.Strategy:
        if self.config.strategy is None:
            self.config = replace(self.config, strategy=convoy.Strategy())
        assert self.config.strategy is not None
        return self.config.strategy

    def _reported(self, network: Network) -> AbstractContextManager[None]:
        return reported(self.config.report, network)

    def _open(
        self, mode: ModeKeys, input_fn: Callable[..., Any]
    ) -> tuple[Network, Iterator[Element]]:
        """Call both functions; return the network and its data."""
        arguments.check(input_fn, "input function", INPUT_ARGUMENTS)
        params = self._params(mode)
        offered = {"mode": mode, "params": params, "config": self.config, "input_context": None}
        data = elements(arguments.call(input_fn, offered), mode, params.get("batch_size"))
        first = next(data, None)
        if first is None:
            raise ValueError("The input function's data has no batch. Return at least one.")
        signature = Signature(first)
        key = (mode, signature.key)
        if key not in self._networks:
            self._networks[key] = self._make(mode, params, signature)
        return self._networks[key], itertools.chain([first], data)

    def _params(self, mode: ModeKeys) -> dict[str, Any]:
        del mode
        return dict(self.params)

    def _make(self, mode: ModeKeys, params: dict[str, Any], signature: Signature) -> Network:
        strategy = self._strategy()
        with strategy.scope():
            tensors = signature.tensors()
            built = self._build(mode, params, tensors)
        return Network(
            built,
            tensors,
            signature,
            strategy,
            self.config.steps_per_execution,
            self.config.stages,
        )

    def _build(self, mode: ModeKeys, params: dict[str, Any], tensors: Element) -> Built:
        """Call the model function."""
        names = arguments.names_of(self.model_fn)
        if tensors.labels is not None and names is not None and "labels" not in names:
            raise ValueError(
                "The input function returns labels, but the model function does not take them. "
                "Give it an argument `labels`."
            )
        offered = {"mode": mode, "params": params, "config": self.config, **tensors._asdict()}
        return self._understood(arguments.call(self.model_fn, offered))

    def _understood(self, returned: Any) -> Built:
        if not isinstance(returned, EstimatorSpec):
            raise ValueError(
                f"The model function returned {type(returned).__name__}, not an EstimatorSpec."
            )
        return Built(returned)

    def _load(self, network: Network, checkpoint_path: str | Path | None) -> int:
        """Give a network its weights, and return how many steps they were trained."""
        if checkpoint_path is not None:
            content = saved.read(checkpoint_path)
        else:
            newest = self._saved.newest()
            if newest is None:
                log.warning(f"{self.model_dir} has no checkpoint: the weights are initial ones.")
                if self.warm_start_from is not None:
                    saved.warm_start(network.model, self.warm_start_from)
                return 0
            content = newest[1]
        saved.restore(network.model, content, training=False)
        return saved.global_step(content)


def _first(data: Iterator[Element], network: Network, steps: int | None) -> Iterator[Element]:
    """Return the batches of the first steps.

    Raises:
        ValueError: if a weight update would not be whole.
    """
    if steps is None:
        return data
    accumulated = network.accumulated
    if steps % accumulated:
        raise ValueError(
            f"{steps} steps are not a multiple of the {accumulated} micro-batches of a weight "
            f"update. Pass {-(-steps // accumulated) * accumulated}."
        )
    return itertools.islice(data, steps * network.batches_per_step)
