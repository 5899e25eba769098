"""`IPUEstimator`: an estimator on the configured devices."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import convoy
import keras
from convoy.arguments import whole_number
from convoy.estimator import Estimator, EstimatorSpec, Hook, ModeKeys, Run, WarmStart
from convoy.estimator.input import Element, Signature
from convoy.estimator.network import Network
from convoy.estimator.spec import NetworkSpec, Stages
from convoy.estimator.user_functions import argument_names, check_returned
from convoy.ipu import checks, config, ipu_strategy, scopes
from convoy.ipu.ipu_run_config import IPURunConfig, RunConfig
from convoy.ipu.ipu_session_run_hooks import LogOp
from convoy.ipu.ops.collectives import collect_symbolic_calls
from convoy.ipu.optimizers import IpuOptimizer, TrainOp, check_reduced, gradient_options
from convoy.types import Data, PyTree

__all__ = ["IPUEstimator", "IPUEstimatorSpec", "IPURunConfig", "ModeKeys", "RunConfig"]


@dataclass(frozen=True)
class IPUEstimatorSpec:
    """A network for one mode.

    Attributes:
        mode: the mode that was passed to the model function.
        predictions: a tensor, or a dict of tensors.
        loss: a tensor.
        train_op: a Keras optimizer, one of `ipu.optimizers` around it, the result of its
            `minimize(loss)`, or a list of one of these and results of hooks.
        eval_metric_ops: metrics by name: a Keras metric, or a tuple of a metric, labels and a
            tensor.
        eval_metrics: a function, and a list or dict of tensors. The function takes their values
            for all samples, and returns numbers by name.
        host_call: a function, and a list of tensors whose values it takes after every step.
        training_hooks: hooks of `train`.
        evaluation_hooks: hooks of `evaluate`.
        prediction_hooks: hooks of `predict`.

    Raises:
        TypeError: if a pair of function and tensors is something else.
        ValueError: if something that the mode requires is missing.
    """

    mode: ModeKeys | str
    predictions: PyTree = None
    loss: PyTree = None
    train_op: PyTree = None
    eval_metric_ops: Mapping[str, PyTree] | None = None
    eval_metrics: tuple[Callable[..., Any], PyTree] | None = None
    host_call: tuple[Callable[..., Any], Sequence[keras.KerasTensor]] | None = None
    training_hooks: Sequence[Hook] = ()
    evaluation_hooks: Sequence[Hook] = ()
    prediction_hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        _check_call("host_call", self.host_call, (list, tuple))
        _check_call("eval_metrics", self.eval_metrics, (list, tuple, dict))
        if self.mode == ModeKeys.TRAIN and (self.loss is None or self.train_op is None):
            raise ValueError("The spec for TRAIN needs a loss and a train_op. Pass both.")
        has_metrics = (self.eval_metric_ops is None) != (self.eval_metrics is None)
        if self.mode == ModeKeys.EVAL and (self.loss is None or not has_metrics):
            raise ValueError(
                "The spec for EVAL needs a loss, and one of eval_metric_ops and eval_metrics. Pass "
                "these two."
            )

    def native(self) -> EstimatorSpec:
        """Return the same spec for Convoy's estimators."""
        spec = partial(EstimatorSpec, self.mode, self.predictions, self.loss)
        if self.mode != ModeKeys.TRAIN:
            is_eval = self.mode == ModeKeys.EVAL
            return spec(
                metrics=self.eval_metric_ops or {},
                host_metrics=self.eval_metrics,
                hooks=self.evaluation_hooks if is_eval else self.prediction_hooks,
            )
        optimizer, log_hooks = _read_train_op(self.train_op)
        hooks = [*self.training_hooks, *(h for h in log_hooks if h not in self.training_hooks)]
        logged = {hook.key(name): t for hook in log_hooks for name, t in hook.tensors.items()}
        if self.host_call is not None:
            call = HostCall(*self.host_call)
            hooks.append(call)
            logged |= call.tensors
        return spec(optimizer, logged=logged, hooks=hooks)


class HostCall(Hook):
    """Passes the values of tensors to a function after every step."""

    def __init__(self, function: Callable[..., Any], tensors: Sequence[keras.KerasTensor]) -> None:
        self.function = function
        self.tensors = {f"{id(self)}.{number}": tensor for number, tensor in enumerate(tensors)}

    def after_execution(self, run: Run) -> None:
        self.function(*(run.values[name][-1] for name in self.tensors))


class IPUEstimator(Estimator):
    """Trains, evaluates and predicts with the network that a model function builds.

    Args:
        model_fn: a function that returns an `IPUEstimatorSpec`. Its arguments are `features` and
            any of `labels`, `mode`, `params` and `config`. It uses Keras layers, `keras.ops`, and
            JAX functions decorated with `convoy.estimator.function`.
        model_dir: folder of the checkpoints; by default that of the config.
        config: a `RunConfig` of `ipu.ipu_run_config`.
        params: parameters that are passed to both functions.
        warm_start_from: a checkpoint, a folder of checkpoints, or a `convoy.estimator.WarmStart`.
        train_batch_size: samples of a step over all replicas. The batch size of one replica is
            passed to both functions as `params["batch_size"]`.
        eval_batch_size: the same for `evaluate`.
        predict_batch_size: the same for `predict`.

    Raises:
        ValueError: if an argument has the wrong type, or contradicts another.
    """

    def __init__(
        self,
        model_fn: Callable[..., PyTree],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: dict[str, PyTree] | None = None,
        warm_start_from: str | Path | WarmStart | None = None,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
    ) -> None:
        config = config or RunConfig()
        if not isinstance(config, RunConfig):
            raise ValueError(f"config is of type {type(config).__name__}. Pass an ipu RunConfig.")
        self.ipu_config = config.ipu
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        super().__init__(model_fn, model_dir, config.native(), params, warm_start_from)
        self._check_params()

    def _check_params(self) -> None:
        sizes = [size for size in self._batch_sizes.values() if size is not None]
        if "input_fn" in self.params:
            raise ValueError("params has a key 'input_fn', which is reserved. Rename it.")
        if sizes and "batch_size" in self.params:
            raise ValueError("params['batch_size'] and a batch size were passed. Pass one.")
        for size in sizes:
            whole_number("batch size", size, "a number of samples")
            checks.multiple("batch size", size, "num_replicas", self.ipu_config.num_replicas)

    def _params(self, mode: ModeKeys) -> dict[str, PyTree]:
        size = self._batch_sizes[mode]
        own = {} if size is None else {"batch_size": size // self.ipu_config.num_replicas}
        return self.params | own

    # Steps ------------------------------------------------------------------------------------

    def _check_limits(self, steps: int | None, max_steps: int | None) -> None:
        super()._check_limits(steps, max_steps)
        if steps is None and max_steps is None:
            raise ValueError("Neither steps nor max_steps was passed. Pass one of them.")
        self._check_evaluation_steps(steps)

    def _check_evaluation_steps(self, steps: int | None) -> None:
        loop = self.config.steps_per_execution
        checks.multiple("steps", steps or 0, "iterations_per_loop", loop)

    def _steps_to_run(self, done: int, steps: int | None, max_steps: int | None) -> int | None:
        left = super()._steps_to_run(done, steps, max_steps)
        loop = self.config.steps_per_execution
        return left and -(-left // loop) * loop

    def _check_trained(self, trained: int, steps: int | None) -> None:
        if steps is not None and trained < steps:
            raise RuntimeError(f"The data ended after {trained} of {steps} steps. Repeat it.")

    def predict(
        self,
        input_fn: Callable[..., Data],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Hook] = (),
        checkpoint_path: str | Path | None = None,
        yield_single_examples: bool = True,
        num_predictions: int | None = None,
    ) -> Iterator[PyTree]:
        """Compute predictions with the newest checkpoint, in the order of the data.

        Args:
            input_fn: a function that returns a dataset.
            predict_keys: keys of a dict of predictions to return; by default all.
            hooks: hooks of the run.
            checkpoint_path: a checkpoint other than the newest.
            yield_single_examples: whether to yield single samples instead of batches.
            num_predictions: number of predictions; by default all of the data.

        Yields:
            Arrays, or dicts of arrays.
        """
        found = super().predict(
            input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples
        )
        return itertools.islice(found, num_predictions)

    # Networks ---------------------------------------------------------------------------------

    def _strategy(self) -> convoy.Strategy:
        run = self.ipu_config
        if run.ipu_options is not None:
            config.configure_ipu_system(run.ipu_options)
        devices = config.devices_of(f"/device:IPU:{run.ordinal}")
        if run.ipu_options is not None:
            run.check_device_count(f"{len(devices)} are selected", len(devices))
        if self.config.strategy is None:
            self._strategy_options = ipu_strategy.strategy_options(config.applied().config)
            strategy = convoy.Strategy(devices[: run.devices], **self._strategy_options)
            self.config = replace(self.config, strategy=strategy)
        return super()._strategy()

    def _open(
        self, mode: ModeKeys, input_fn: Callable[..., Data]
    ) -> tuple[Network, Iterator[Element]]:
        names = argument_names(input_fn)
        if self._batch_sizes[mode] is not None and names is not None and "params" not in names:
            raise ValueError("The input function does not take `params`. Add this argument.")
        network, data = super()._open(mode, input_fn)
        return network, _of_equal_shapes(data, network)

    def _build(self, mode: ModeKeys, params: dict[str, PyTree], tensors: Element) -> NetworkSpec:
        with collect_symbolic_calls() as exchanges, scopes.collect_shards() as shards:
            built = super()._build(mode, params, tensors)
        if shards:
            built = built._replace(stages=self._stages_of(shards))
        if mode == ModeKeys.TRAIN and not exchanges:
            check_reduced("The network", self.ipu_config.num_replicas, self._averages)
        return built

    def _stages_of(self, shards: set[int]) -> Stages:
        """Return the options of a network that was divided by `ipu_shard`."""
        passed, used = self.ipu_config.num_shards, max(shards) + 1
        if used != passed:
            raise ValueError(f"num_shards={passed}, but ipu_shard uses {used}. Pass {used}.")
        return Stages(used - 1, "sequential", has_gaps=True)

    def _network_spec(self, returned: PyTree) -> NetworkSpec:
        self._averages = True
        if isinstance(returned, EstimatorSpec):
            return NetworkSpec(returned)
        expected = "an IPUEstimatorSpec"
        check_returned("The model function", returned, IPUEstimatorSpec, expected, ValueError)
        loop = self.config.steps_per_execution
        if returned.host_call is not None and loop > 1:
            raise ValueError("host_call runs after every step. Leave out iterations_per_loop.")
        spec = returned.native()
        options = gradient_options(spec.optimizer)
        self._averages = options.reduction == "mean"
        accumulation = None
        if options.accumulation is not None:
            accumulation = options.accumulation.native()
            count, reason = accumulation.gradient_accumulation, checks.INSIDE_OF_UPDATE
            checks.multiple("iterations_per_loop", loop, "num_mini_batches", count, reason)
        return self._with_gradient_options(NetworkSpec(spec, accumulation=accumulation))

    def _with_gradient_options(self, built: NetworkSpec, devices: int | None = None) -> NetworkSpec:
        """Return a network whose optimizer is unwrapped, and its options applied.

        Args:
            built: the network, with an optimizer of Keras or `ipu.optimizers`.
            devices: number of devices to use; by default all.
        """
        assert self.config.strategy is not None
        options = gradient_options(built.spec.optimizer)
        every = self.config.strategy.devices
        used, strategy = every[:devices], None
        if options.loss_scale is not None or len(used) < len(every):
            changed = self._strategy_options | {"loss_scale": options.loss_scale}
            strategy = convoy.Strategy(used, **changed)
        spec = replace(built.spec, optimizer=options.optimizer)
        return built._replace(spec=spec, strategy=strategy, gradient_map=options.gradient_map)


def _of_equal_shapes(data: Iterator[Element], network: Network) -> Iterator[Element]:
    for element in data:
        checks.equal_shapes(Signature(element).key, network.signature.key)
        yield element


def _check_call(name: str, value: object, kinds: checks.Kinds) -> None:
    checks.instance(name, value, tuple, "a tuple of a function and tensors")
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ValueError(f"{name} has {len(value)} parts. Pass a function and its tensors.")
        if not callable(value[0]):
            raise TypeError(f"{name}[0]={value[0]!r} is not a function. Pass one there.")
        checks.instance(f"{name}[1]", value[1], kinds, "a list of tensors")


def _read_train_op(train_op: PyTree) -> tuple[Any, list[Any]]:
    """Return the optimizer of a training operation, and the hooks that log.

    Raises:
        ValueError: if there is no optimizer in it, or there are two.
    """
    parts = keras.tree.flatten(train_op) if isinstance(train_op, (list, tuple)) else [train_op]
    hooks = [part.hook for part in parts if isinstance(part, LogOp)]
    others = [part for part in parts if not isinstance(part, LogOp)]
    found = [part.optimizer if isinstance(part, TrainOp) else part for part in others]
    if len(found) != 1 or not isinstance(found[0], (str, keras.optimizers.Optimizer, IpuOptimizer)):
        raise ValueError(
            f"train_op={train_op!r} is neither an optimizer nor the result of its minimize(loss). "
            "Pass one of them."
        )
    return found[0], hooks
