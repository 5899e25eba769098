"""Methods of a model under an `IPUStrategy`, with Graphcore's names and rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import convoy
import keras
from convoy import context, keras_bridge
from convoy.engine.prepared_model import PreparedModel
from convoy.engine.step.all_reduce import Reduction
from convoy.estimator.spec import Stages
from convoy.ipu import notice, optimizers
from convoy.ipu.enums import ReplicatedMetricReductionMethod
from convoy.ipu.gradient_accumulation import Accumulation
from convoy.ipu.keras import pipeline_stages, steps
from convoy.ipu.keras.model_options import ModelOptions
from convoy.ipu.keras.replica_metrics import PerReplica, counted_by_replica
from convoy.ipu.serving import export_keras
from convoy.pipeline.pipeline_stage import trace_stages
from convoy.pipeline.stages import unchecked_stage_assignment
from convoy.types import Data

if TYPE_CHECKING:
    from convoy.ipu.ipu_strategy import Engine


class Extensions(ModelOptions):
    """The methods that Graphcore's Keras adds to a model, on top of those of a strategy.

    Every public method becomes a method of the model, in place of the strategy's own if it has one.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.model = model
        self.pending_stages: list[int] | None = None
        """Stages that were assigned before the model was built."""
        self.ignores_stage_blocks = False
        """Whether the stages of `PipelineStage` blocks were reset."""
        self.reduction: Reduction | None = None
        self.loss_scale: convoy.AutomaticLossScale | None = None
        self.compile_arguments: tuple[tuple, dict[str, Any]] | None = None

    def _install(self, engine: Engine) -> None:
        """Replace the methods that a strategy has just set on the model."""
        self.engine = self.made_under = engine
        self.applied: tuple[Stages | None, Accumulation] | None = None
        functions = dict(inspect.getmembers(type(self), inspect.isfunction))
        methods = {name: getattr(self, name) for name in functions if not name.startswith("_")}
        replaced, attributes = PreparedModel.of(self.model).methods, vars(self.model)
        self.native: dict[str, Callable[..., Any]] = {
            name: own for name, own in (attributes | replaced).items() if name in methods
        }
        for name, method in methods.items():
            # Without `setattr`, which Keras would treat as a change of the model's state.
            (replaced if name in replaced else attributes)[name] = method
        attributes["export_for_ipu_serving"] = partial(export_keras, self.model)

    def set_replication_options(
        self, replicated_metric_reduction_method: str | ReplicatedMetricReductionMethod = "NONE"
    ) -> None:
        """Set how metrics and losses of replicas are reported, for models without stages.

        Args:
            replicated_metric_reduction_method: `NONE` is the value over all data, `LIST` the value
                of each replica's own data, `SUM` and `MEAN` the sum and the mean of these.
        """
        self.metric_method = ReplicatedMetricReductionMethod.parse(
            replicated_metric_reduction_method
        )
        if self.model.compiled and self.compile_arguments is not None:
            self._compile(self.model.optimizer)

    def save_assets(self, folder: str) -> None:
        """Write the options; Keras calls this when it saves the model."""
        self._write(folder, self.pending_stages or self._stages())

    def load_assets(self, folder: str) -> None:
        """Read the options; Keras calls this when it has loaded the model."""
        saved = self._read(folder)
        if saved is not None:
            self.set_replication_options(saved["replicated_metric_reduction_method"])
            self.pending_stages = saved["pipeline_stage_assignment"]
            self._assign_stages()

    # Stages -----------------------------------------------------------------------------------

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: list[Any]) -> None:
        """Assign each layer to a pipeline stage, in the order of execution.

        Args:
            pipeline_stage_assignment: the result of `get_pipeline_stage_assignment` with stages
                set; for a sequential model, numbers are accepted too.
        """
        stages = pipeline_stages.stage_numbers(self.model, pipeline_stage_assignment)
        if max(stages) == 0:
            raise ValueError(
                "All layers are in stage 0. Use more, or call reset_pipeline_stage_assignment()."
            )
        self.pending_stages = stages
        self.ignores_stage_blocks = False
        self._assign_stages()

    def get_pipeline_stage_assignment(self) -> list[pipeline_stages.Assignment]:
        """Return the stage of each layer, in the order of execution."""
        stages = self.pending_stages
        if stages is None and self.model.built:
            stages = unchecked_stage_assignment(self.model)
        return pipeline_stages.assignments(self.model, stages)

    def reset_pipeline_stage_assignment(self) -> None:
        """Remove all pipeline stages from the model."""
        self.pending_stages = None
        self.ignores_stage_blocks = True
        if self.model.built:
            self.native["reset_pipeline_stage_assignment"]()

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], Any] | None = None
    ) -> None:
        """Print the stage of each layer as a table."""
        found = self.get_pipeline_stage_assignment()
        for line in pipeline_stages.summary(self.model, found, line_length):
            (print_fn or print)(line)

    def _assign_stages(self) -> None:
        if self.pending_stages is not None and self.model.built:
            self.native["set_pipeline_stage_assignment"](self.pending_stages)
            self.pending_stages = None

    def _stages(self) -> list[int] | None:
        return self.native["get_pipeline_stage_assignment"]() if self.model.built else None

    # Running ----------------------------------------------------------------------------------

    def compile(
        self, optimizer: optimizers.Optimizer = "rmsprop", *args: Any, **kwargs: Any
    ) -> None:
        """Configure the model for training, as `keras.Model.compile` does.

        An optimizer of `ipu.optimizers` or `ipu.keras.optimizers` sets how gradients are
        accumulated and reduced; the optimizer that it wraps updates the weights.
        """
        options = optimizers.gradient_options(optimizer)
        if isinstance(optimizer, optimizers.IpuOptimizer):
            optimizer.attach(self.model)
        PreparedModel.of(self.model).gradient_map = options.gradient_map
        if options.accumulation is not None:
            self._set_accumulation(options.accumulation)
        if (options.reduction, options.loss_scale) != (self.reduction, self.loss_scale):
            self.reduction, self.loss_scale = options.reduction, options.loss_scale
            self._move(len(self.engine.devices))
        self.compile_arguments = args, kwargs
        self._compile(options.optimizer)

    def _compile(self, optimizer: optimizers.Optimizer) -> None:
        """Compile the model, with a metric per replica if that was set."""
        assert self.compile_arguments is not None
        args, kwargs = self.compile_arguments
        method, replicas = self.metric_method, len(self.engine.devices)
        one_value = method == ReplicatedMetricReductionMethod.NONE
        if one_value or replicas == 1 or self._stages() is not None:
            self.native["compile"](optimizer, *args, **kwargs)
            return
        signature = inspect.signature(keras.Model.compile)
        arguments = signature.bind(self.model, optimizer, *args, **kwargs).arguments
        arguments.pop("self")
        by_replica = partial(counted_by_replica, replicas=replicas, method=method)
        for name in ("metrics", "weighted_metrics"):
            if arguments.get(name) is not None:
                arguments[name] = keras.tree.map_structure(by_replica, arguments[name])
        self.native["compile"](**arguments)
        loss = PerReplica(keras.metrics.Mean(name="loss"), replicas, method)
        keras_bridge.set_loss_tracker(self.model, loss)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Train the model, as `keras.Model.fit` does.

        `batch_size` is the micro-batch of one replica. `steps_per_epoch` counts the batches of
        all replicas. The data must consist of complete batches, and these of complete executions.
        """
        unsupported = "train_step", "make_train_function"
        arguments, replicas = self._prepare("fit", unsupported, args, kwargs)
        count = self._accumulation().gradient_accumulation
        self._check_optimizer(count)
        per_replica = steps.steps_per_replica(arguments, replicas)
        steps.check_execution(per_replica, self.model.steps_per_execution, count)
        if arguments.get("steps_per_epoch") is not None:
            arguments["steps_per_epoch"] = per_replica
        batch = arguments.get("batch_size")
        if batch is not None:
            notice.log.info(f"A weight update is made from {batch} x {count} x {replicas} samples.")
        # An execution is at most an epoch, and callbacks receive the number of its last step.
        execution = min(self.model.steps_per_execution, per_replica)
        with context.changed([(self.model, "steps_per_execution", execution)]):
            return self.native["fit"](**arguments)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Compute loss and metrics of all samples, as `keras.Model.evaluate` does."""
        return self._infer("evaluate", "test", args, kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's outputs, as `keras.Model.predict` does."""
        return self._infer("predict", "predict", args, kwargs)

    def _infer(self, method: str, word: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        is_custom = keras_bridge.overridden(self.model, (f"{word}_step",))
        if is_custom and self._stages() is not None:
            raise RuntimeError(
                f"{type(self.model).__name__} overrides {word}_step, which is not supported with "
                "pipeline stages. Leave it out, or call reset_pipeline_stage_assignment()."
            )
        arguments, replicas = self._prepare(method, (f"make_{word}_function",), args, kwargs)
        if arguments.get("steps") is not None:
            arguments["steps"] = steps.per_replica("steps", arguments["steps"], replicas)
        return self.native[method](**arguments)

    def _prepare(
        self, method: str, unsupported: tuple[str, ...], args: tuple, kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], int]:
        """Check and build the model, and set its options; return arguments and replicas."""
        self._check_model(method, unsupported)
        arguments = inspect.signature(self.native[method]).bind(*args, **kwargs).arguments
        self._build(arguments.get("x"), arguments.get("batch_size"))
        replicas = self._apply_options(training=method == "fit")
        accumulates = self.accumulate_outfeed and self._stages() is not None and method != "predict"
        self.native["set_asynchronous_callbacks"](self.asynchronous and not accumulates)
        return arguments, replicas

    def _check_model(self, method: str, unsupported: tuple[str, ...]) -> None:
        model = self.model
        kind = type(model)
        own = [n for n in unsupported if getattr(kind, n) is not getattr(keras.Model, n)]
        if own:
            raise RuntimeError(
                f"{kind.__name__} overrides {own[0]}, which {method}() does not run. Make the "
                "strategy with enable_keras_extensions=False."
            )
        if self._stages() is not None and keras_bridge.overrides_call(model):
            raise RuntimeError(f"{kind.__name__} overrides call(). Compute stages in layers.")
        if model.compiled and model.run_eagerly:
            raise RuntimeError("run_eagerly=True was passed to compile(). Leave it out.")
        if kind.call is keras.Model.call:
            raise NotImplementedError(f"{kind.__name__} has no call(). Define it.")

    def _check_optimizer(self, micro_batches: int) -> None:
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # inside a loss scale
        accumulates = micro_batches > 1 or self._stages() is not None
        if accumulates and hasattr(optimizer, "minimize"):
            raise ValueError(
                f"{type(optimizer).__name__} defines minimize(), which is not called with gradient "
                "accumulation. Override apply() or update_step() instead."
            )

    def _build(self, x: Data, batch_size: int | None) -> None:
        """Build a model whose stages were assigned before its shapes are known."""
        trace_stages(self.model, x)
        if self.pending_stages is not None and not self.model.built:
            if not hasattr(x, "shape"):
                raise ValueError(
                    f"{self.model.name!r} has stages, but the shape of its input is not known yet. "
                    "Call model.build(shape) first, or begin it with a keras.Input."
                )
            self.model.build((batch_size, *x.shape[1:]))
        self._assign_stages()

    # Options of the engine --------------------------------------------------------------------

    def _accumulation(self) -> Accumulation:
        return self.accumulation if self._stages() is None else self.pipeline.accumulation

    def _apply_options(self, *, training: bool) -> int:
        """Set the options of the engine's model, and return the number of replicas."""
        assigned, config = self._stages(), self.engine.config
        stages, replicas = None, len(self.engine.devices)
        if assigned is not None:
            last = max(assigned)
            if training:
                self.pipeline.check(last + 1, config)
            stages = self.pipeline.stages(last, config.allow_recompute)
            replicas = self._fill_devices(stages.devices_per_replica)
        elif not self.ignores_stage_blocks and pipeline_stages.is_all_in_the_first_stage(
            self.model
        ):
            raise ValueError(
                f"All layers of {self.model.name!r} are in PipelineStage(0). Use two stages or "
                "more, or call reset_pipeline_stage_assignment()."
            )
        options = stages, self._accumulation()
        if options != self.applied:  # setting them again would compile again
            if stages is not None:
                self.native["set_pipelining_options"](**stages.options)
            self.model.set_gradient_accumulation(**asdict(options[1].native()))
            self.applied = options
        return replicas

    def _fill_devices(self, devices_per_replica: int) -> int:
        """Use as many devices as complete replicas take; return the number of replicas.

        A replica takes a power of two of devices, as in Graphcore's software.
        """
        devices = len(self.made_under.devices)
        if devices_per_replica > devices:
            raise ValueError(
                f"{self.model.name!r} is in stages on {devices_per_replica} devices, but {devices} "
                "are configured. Select more, or pass a device_mapping that shares devices."
            )
        # One replica may have fewer devices than a power of two.
        replicas = max(1, devices // (1 << (devices_per_replica - 1).bit_length()))
        used = replicas * devices_per_replica
        if devices // devices_per_replica > replicas and len(self.engine.devices) != used:
            self._move(used)
        return replicas

    def _move(self, count: int) -> None:
        """Prepare the model for the first devices of its strategy, and the optimizer's options."""
        made_under = self.made_under
        convoy.prepare(self.model, made_under.changed(count, self.reduction, self.loss_scale))
        self.made_under = made_under


class ExtendedModel(PreparedModel):
    """The state of a prepared model that has Graphcore's methods."""

    def __init__(self) -> None:
        super().__init__()
        self.extensions: Extensions | None = None


def extend(model: keras.Model, engine: Engine) -> None:
    """Add Graphcore's methods to a model that a strategy has just prepared.

    Options that were set under another strategy are kept.
    """
    state = ExtendedModel.of(model)
    state.counts_batches_of_replicas = True
    state.extensions = state.extensions or Extensions(model)
    state.extensions._install(engine)
