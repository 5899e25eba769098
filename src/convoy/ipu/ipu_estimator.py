"""`IPUEstimator`, on the devices that are configured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import convoy
from convoy.estimator import EstimatorSpec, Hook, ModeKeys, Run, WarmStart, arguments
from convoy.estimator.estimator import Estimator
from convoy.estimator.input import Element
from convoy.estimator.network import Network
from convoy.estimator.spec import Accumulated, Built, Stages
from convoy.ipu import ipu_strategy, scopes, system, train_op
from convoy.ipu.ipu_run_config import IPURunConfig, RunConfig
from convoy.ipu.ops.symbolic import notice_exchanges
from convoy.ipu.optimizers import Wishes

__all__ = ["IPUEstimator", "IPUEstimatorSpec", "IPURunConfig", "ModeKeys", "RunConfig"]


@dataclass(frozen=True)
class IPUEstimatorSpec:
    """A network, for one mode.

    Attributes:
        mode: as the model function was told.
        predictions: a tensor, or a dict of them.
        loss: a tensor.
        train_op: an optimizer of Keras's, around it one of `ipu.optimizers`, what its
            `minimize(loss)` returned, or a list of that and what hooks returned.
        eval_metric_ops: metrics by name: a Keras metric, or a tuple of it, labels and a tensor.
        eval_metrics: a function, and a list or dict of tensors: it is given their values for all
            samples, and returns numbers by name.
        host_call: a function and a list of tensors, whose values it is given after every step.
        training_hooks: told of `train`.
        evaluation_hooks: told of `evaluate`.
        prediction_hooks: told of `predict`.

    Raises:
        TypeError: if a function and its tensors are not given as such.
        ValueError: if something that the mode needs is missing.
    """

    mode: ModeKeys | str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    eval_metrics: tuple[Callable[..., Any], Any] | None = None
    host_call: tuple[Callable[..., Any], Sequence[Any]] | None = None
    training_hooks: Sequence[Hook] = ()
    evaluation_hooks: Sequence[Hook] = ()
    prediction_hooks: Sequence[Hook] = ()

    def __post_init__(self) -> None:
        _check_call("host_call", self.host_call, (list, tuple))
        _check_call("eval_metrics", self.eval_metrics, (list, tuple, dict))
        if self.mode == ModeKeys.TRAIN and (self.loss is None or self.train_op is None):
            raise ValueError("The spec for TRAIN needs a loss and a train_op. Pass both.")
        one = (self.eval_metric_ops is None) != (self.eval_metrics is None)
        if self.mode == ModeKeys.EVAL and (self.loss is None or not one):
            raise ValueError(
                "The spec for EVAL needs a loss, and one of eval_metric_ops and eval_metrics."
            )

    def native(self) -> tuple[EstimatorSpec, Wishes]:
        """Return the same in Convoy's words, and what the optimizer says besides."""
        if self.mode != ModeKeys.TRAIN:
            hooks = self.evaluation_hooks
            if self.mode == ModeKeys.PREDICT:
                hooks = self.prediction_hooks
            return (
                EstimatorSpec(
                    self.mode,
                    self.predictions,
                    self.loss,
                    metrics=self.eval_metric_ops or {},
                    host_metrics=self.eval_metrics,
                    hooks=tuple(hooks),
                ),
                Wishes(None),
            )
        parts = train_op.read(self.train_op)
        hooks = list(self.training_hooks)
        hooks += [hook for hook in parts.hooks if hook not in hooks]
        logged = {hook.key(n): t for hook in parts.hooks for n, t in hook.tensors.items()}
        if self.host_call is not None:
            call = HostCall(*self.host_call)
            hooks.append(call)
            logged |= call.tensors
        spec = EstimatorSpec(
            self.mode,
            self.predictions,
            self.loss,
            parts.wishes.optimizer,
            logged=logged,
            hooks=tuple(hooks),
        )
        return spec, parts.wishes


class HostCall(Hook):
    """Hands the values of tensors to a function after every step."""

    def __init__(self, function: Callable[..., Any], tensors: Sequence[Any]) -> None:
        self.function = function
        self.tensors = {f"{id(self)}.{number}": tensor for number, tensor in enumerate(tensors)}

    def after_execution(self, run: Run) -> None:
        self.function(*(run.values[name][-1] for name in self.tensors))


class IPUEstimator(Estimator):
    """Trains, evaluates and predicts with what a model function builds, on all replicas.

    Args:
        model_fn: takes `features`, and of `labels`, `mode`, `params` and `config` what it names.
            Returns an `IPUEstimatorSpec`. It builds with Keras layers, `keras.ops`, and JAX
            functions under `convoy.estimator.function`.
        model_dir: where checkpoints are; by default that of the config.
        config: a `RunConfig` of `ipu.ipu_run_config`.
        params: handed to both functions.
        warm_start_from: a checkpoint, a folder of them, or a `convoy.estimator.WarmStart`.
        train_batch_size: samples of a step on all replicas. The share of one is handed to both
            functions as `params["batch_size"]`.
        eval_batch_size: the same for `evaluate`.
        predict_batch_size: the same for `predict`.

    Raises:
        ValueError: if an argument is none of these.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: RunConfig | None = None,
        params: dict[str, Any] | None = None,
        warm_start_from: str | Path | WarmStart | None = None,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
    ) -> None:
        config = config or RunConfig()
        if not isinstance(config, RunConfig):
            raise ValueError(
                f"config is a {type(config).__name__}, not a RunConfig of ipu.ipu_run_config."
            )
        self.ipu_config = config
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        self._check_params(params)
        super().__init__(model_fn, model_dir, config.native(), params, warm_start_from)
        self.config = replace(self.config, stages=self._automatic_stages())

    def _automatic_stages(self) -> int:
        return self.ipu_config.ipu.num_shards

    def _check_params(self, params: Any) -> None:
        if params is not None and not isinstance(params, dict):
            raise ValueError(f"params={params!r} is not a dict.")
        sizes = [size for size in self._batch_sizes.values() if size is not None]
        if "input_fn" in (params or {}):
            raise ValueError("params has a key 'input_fn', which is reserved. Name it otherwise.")
        if sizes and "batch_size" in (params or {}):
            raise ValueError(
                "params has a key 'batch_size', beside train_batch_size or its sisters. Pass one."
            )
        replicas = self.ipu_config.ipu.num_replicas
        for size in sizes:
            if size < 1 or size % replicas:
                raise ValueError(
                    f"A batch of {size} samples does not divide over num_replicas={replicas}. Pass "
                    "a multiple."
                )

    def _params(self, mode: ModeKeys) -> dict[str, Any]:
        size = self._batch_sizes[mode]
        own = {} if size is None else {"batch_size": size // self.ipu_config.ipu.num_replicas}
        return self.params | own

    # Steps ------------------------------------------------------------------------------------

    def _check_limits(self, steps: int | None, max_steps: int | None) -> None:
        super()._check_limits(steps, max_steps)
        if steps is None and max_steps is None:
            raise ValueError("Neither steps nor max_steps was passed. Pass one of them.")
        self._check_loops(steps)

    def _check_loops(self, steps: int | None) -> None:
        loop = self.config.steps_per_execution
        if steps is not None and steps % loop:
            raise ValueError(
                f"steps={steps} is not a multiple of iterations_per_loop={loop}. Pass "
                f"{-(-steps // loop) * loop}."
            )

    def _steps_to_run(self, done: int, steps: int | None, max_steps: int | None) -> int | None:
        left = super()._steps_to_run(done, steps, max_steps)
        loop = self.config.steps_per_execution
        return left and -(-left // loop) * loop

    def _check_trained(self, trained: int, steps: int | None) -> None:
        if steps is not None and trained < steps:
            raise RuntimeError(
                f"The data ended after {trained} of {steps} steps. Repeat the data set."
            )

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Hook] = (),
        checkpoint_path: str | Path | None = None,
        yield_single_examples: bool = True,
        num_predictions: int | None = None,
    ) -> Iterator[Any]:
        """Compute predictions by the newest checkpoint, in the order of the data.

        Args:
            input_fn: returns a data set.
            predict_keys: which of a dict of predictions.
            hooks: told of the run.
            checkpoint_path: a checkpoint other than the newest.
            yield_single_examples: whether samples come one by one, else by batches.
            num_predictions: how many; by default all of the data.

        Yields:
            Arrays, or dicts of them.
        """
        found = super().predict(
            input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples
        )
        return itertools.islice(found, num_predictions)

    # Networks ---------------------------------------------------------------------------------

    def _strategy(self) -> convoy.Strategy:
        run = self.ipu_config.ipu
        if run.ipu_options is not None:
            system.configure_ipu_system(run.ipu_options)
        devices = system.devices_of(f"/device:IPU:{run.ordinal}")
        if run.ipu_options is not None and len(devices) != run.devices:
            raise ValueError(
                f"num_replicas={run.num_replicas} x num_shards={run.num_shards} are "
                f"{run.devices} devices, but {len(devices)} are selected. Make them equal."
            )
        if self.config.strategy is None:
            self._engine_settings = ipu_strategy.settings(system.in_force().config)
            strategy = convoy.Strategy(self._used(devices), **self._engine_settings)
            self.config = replace(self.config, strategy=strategy)
        assert self.config.strategy is not None
        return self.config.strategy

    def _used(self, devices: Sequence[Any]) -> Sequence[Any]:
        """Return the devices that stages have a place on."""
        return devices[: self.ipu_config.ipu.devices]

    def _open(
        self, mode: ModeKeys, input_fn: Callable[..., Any]
    ) -> tuple[Network, Iterator[Element]]:
        names = arguments.names_of(input_fn)
        if self._batch_sizes[mode] is not None and names is not None and "params" not in names:
            raise ValueError(
                "A batch size was passed to the estimator, but the input function does not take "
                "`params`, in which it is handed over. Give it that argument."
            )
        network, data = super()._open(mode, input_fn)
        return network, _of_one_shape(data, network)

    def _build(self, mode: ModeKeys, params: dict[str, Any], tensors: Element) -> Built:
        with notice_exchanges() as exchanges, scopes.notice_shards() as shards:
            built = super()._build(mode, params, tensors)
        if shards:
            built = built._replace(stages=self._by_hand(shards))
        replicas = self.ipu_config.ipu.num_replicas
        if mode == ModeKeys.TRAIN and replicas > 1 and not (self._averages or exchanges):
            raise ValueError(
                f"The network is trained on {replicas} replicas, but their gradients do not come "
                "together. Wrap the optimizer in ipu.optimizers.CrossReplicaOptimizer."
            )
        return built

    def _by_hand(self, shards: set[int]) -> Stages:
        """Return how a network runs that was divided by `ipu_shard`."""
        wanted, last = self.ipu_config.ipu.num_shards, max(shards)
        if last + 1 != wanted:
            raise ValueError(
                f"The network is divided by ipu_shard over {last + 1} devices, but num_shards="
                f"{wanted}. Pass {last + 1}, and as many IPUs for each replica."
            )
        return Stages(last, "sequential", has_gaps=True)

    def _understood(self, returned: Any) -> Built:
        self._averages = True
        if isinstance(returned, EstimatorSpec):
            return Built(returned)
        if not isinstance(returned, IPUEstimatorSpec):
            raise ValueError(
                f"The model function returned {type(returned).__name__}, not an IPUEstimatorSpec."
            )
        if returned.host_call is not None and self.config.steps_per_execution > 1:
            raise ValueError(
                f"host_call is for every step, but iterations_per_loop is "
                f"{self.config.steps_per_execution}. Leave one of them out."
            )
        spec, wishes = returned.native()
        self._averages = wishes.reduction == "mean"
        scaled = self._scaled(wishes)
        return Built(spec, None, self._accumulated(wishes), scaled, wishes.gradient_map)

    def _accumulated(self, wishes: Wishes) -> Accumulated | None:
        wish = wishes.accumulation
        if wish is None:
            return None
        loop = self.config.steps_per_execution
        if loop % wish.count:
            raise ValueError(
                f"iterations_per_loop={loop} is not a multiple of num_mini_batches={wish.count}, "
                "so a device call would end inside of a weight update. Choose a multiple."
            )
        return Accumulated(wish.count, wish.reduction, wish.dtype)

    def _scaled(self, wishes: Wishes) -> convoy.Strategy | None:
        """Return a strategy that scales the loss, if the optimizer asks for it."""
        if wishes.loss_scale is None:
            return None
        settings = self._engine_settings | {"loss_scale": wishes.loss_scale}
        assert self.config.strategy is not None
        return convoy.Strategy(self.config.strategy.devices, **settings)


def _of_one_shape(data: Iterator[Element], network: Network) -> Iterator[Element]:
    expected = network.signature.key
    for element in data:
        found = tuple((n, tuple(a.shape), str(a.dtype)) for n, a in element.named().items())
        if found != expected:
            raise ValueError(
                f"The data set's items differ in shape: {found} after {expected}. Leave out its "
                "last, incomplete batch."
            )
        yield element


def _check_call(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if value is None:
        return
    if not isinstance(value, tuple):
        raise TypeError(f"{name}={value!r} is not a tuple of a function and tensors.")
    if len(value) != 2:
        raise ValueError(f"{name} has {len(value)} parts. Pass a function and its tensors.")
    if not callable(value[0]):
        raise TypeError(f"{name}[0]={value[0]!r} is not a function.")
    if not isinstance(value[1], kinds):
        raise TypeError(f"{name}[1]={value[1]!r} is not a list of tensors.")
