"""The methods that a model has under an `IPUStrategy`, by Graphcore's names and rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import convoy
import keras
from convoy import keras_bridge
from convoy.engine.prepared_model import PreparedModel
from convoy.ipu import notice, optimizers
from convoy.ipu.accumulation import Accumulation
from convoy.ipu.enums import (
    ReplicatedMetricReductionMethod,
)
from convoy.ipu.keras import assignment, saved_options, steps
from convoy.ipu.keras.pipeline_options import SCHEDULES, PipelineOptions
from convoy.ipu.keras.replica_metrics import PerReplica, counted_by_replica
from convoy.ipu.keras.settings import Settings
from convoy.pipeline.pipeline_stage import trace_stages
from convoy.pipeline.stages import unchecked_stage_assignment

_ATTRIBUTE = "_convoy_ipu"
_NATIVE = (
    "set_asynchronous_callbacks",
    "compile",
    "fit",
    "evaluate",
    "predict",
    "set_gradient_accumulation",
    "set_pipelining_options",
    "set_pipeline_stage_assignment",
    "get_pipeline_stage_assignment",
    "reset_pipeline_stage_assignment",
)


class Engine(Protocol):
    """What the extensions ask of the strategy that a model was made under."""

    devices: tuple[Any, ...]
    allow_recompute: bool
    on_io_tiles: bool

    def changed(
        self,
        *,
        count: int | None = None,
        reduction: Literal["sum", "mean"] | None = None,
        loss_scale: convoy.AutomaticLossScale | None = None,
    ) -> convoy.Strategy:
        """Return the same strategy on the first devices, or with another way with gradients."""
        ...


class Extensions(Settings):
    """Adds to a model what Graphcore's Keras has, on top of what Convoy's strategy gave it."""

    added = (
        "compile",
        "fit",
        "evaluate",
        "predict",
        "set_gradient_accumulation_options",
        "set_pipelining_options",
        "set_pipeline_stage_assignment",
        "get_pipeline_stage_assignment",
        "reset_pipeline_stage_assignment",
        "print_pipeline_stage_assignment_summary",
        "set_asynchronous_callbacks",
        "set_replication_options",
        "set_infeed_queue_options",
        "set_outfeed_queue_options",
        "export_for_ipu_serving",
        "save_assets",
        "load_assets",
    )

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.model = model
        self.pending_stages: list[int] | None = None
        self.in_one_piece = False
        """Whether that was asked for, whatever blocks its layers were made in."""
        self.reduction: Literal["sum", "mean"] | None = None
        self.compiled_with: tuple[tuple, dict[str, Any]] | None = None
        self.loss_scale: convoy.AutomaticLossScale | None = None

    def install(self, engine: Engine) -> None:
        """Put the methods before those of the strategy that the model was just taken in by."""
        self.engine = self.made_under = engine
        self.applied: Any = None
        self.native: dict[str, Callable[..., Any]] = {
            name: getattr(self.model, name) for name in _NATIVE
        }
        # Not through `setattr`: Keras would take it for a change of the model's state.
        for name in self.added:
            vars(self.model)[name] = getattr(self, name)

    def set_replication_options(
        self,
        replicated_metric_reduction_method: str | ReplicatedMetricReductionMethod = "NONE",
    ) -> None:
        """Choose what is reported of the replicas' metrics and losses, of models without stages.

        Args:
            replicated_metric_reduction_method: `NONE` is the value of all data together, `LIST`
                the value of each replica's own data, `SUM` and `MEAN` the sum and the mean of
                these.
        """
        self.metric_method = ReplicatedMetricReductionMethod.parse(
            replicated_metric_reduction_method
        )
        if self.model.compiled and self.compiled_with is not None:
            self._compile(self.model.optimizer)

    def export_for_ipu_serving(
        self,
        export_dir: str | Path,
        batch_size: int | None = None,
        output_names: Sequence[str] | str | None = None,
        preprocessing_step: Callable[..., Any] | None = None,
        preprocessing_step_signature: Sequence[Any] | None = None,
        postprocessing_step: Callable[..., Any] | None = None,
        postprocessing_step_signature: Sequence[Any] | None = None,
        purge_export_dir: bool = False,
    ) -> Callable[..., Any]:
        """Write the model for `convoy serve`; the arguments are those of `serving.export_keras`."""
        # What serves models is above what trains them.
        from convoy.ipu.serving import export_keras

        return export_keras(
            self.model,
            export_dir,
            batch_size,
            output_names,
            preprocessing_step,
            preprocessing_step_signature,
            postprocessing_step,
            postprocessing_step_signature,
            purge_export_dir,
        )

    def save_assets(self, folder: str) -> None:
        """Write the options; Keras calls this when it saves the model."""
        saved_options.write(self, folder)

    def load_assets(self, folder: str) -> None:
        """Take over options; Keras calls this when it has loaded the model."""
        saved_options.read(self, folder)

    # Stages -----------------------------------------------------------------------------------

    def set_pipeline_stage_assignment(self, pipeline_stage_assignment: list[Any]) -> None:
        """Give every layer its stage, in the order in which layers run.

        Args:
            pipeline_stage_assignment: what `get_pipeline_stage_assignment` returns, with stages
                set; for a sequential model numbers will do.
        """
        stages = assignment.stage_numbers(self.model, pipeline_stage_assignment)
        if max(stages) == 0:
            raise ValueError(
                "All layers are in stage 0. Pass two stages or more, or call "
                "reset_pipeline_stage_assignment() for a model in one piece."
            )
        self.pending_stages = stages
        self.in_one_piece = False
        if self.model.built:
            self._assign()

    def get_pipeline_stage_assignment(self) -> list[assignment.Assignment]:
        """Return the stage of every layer, in the order in which layers run."""
        stages = self.pending_stages
        if stages is None and self.model.built:
            stages = unchecked_stage_assignment(self.model)
        return assignment.assignments(self.model, stages)

    def reset_pipeline_stage_assignment(self) -> None:
        """Have the model in one piece again."""
        self.pending_stages = None
        self.in_one_piece = True
        if self.model.built:
            self.native["reset_pipeline_stage_assignment"]()

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], Any] | None = None
    ) -> None:
        """Print the stage of every layer as a table."""
        found = self.get_pipeline_stage_assignment()
        for line in assignment.summary(self.model, found, line_length):
            (print_fn or print)(line)

    def _assign(self) -> None:
        if self.pending_stages is not None:
            self.native["set_pipeline_stage_assignment"](self.pending_stages)
            self.pending_stages = None

    def _stages(self) -> list[int] | None:
        return self.native["get_pipeline_stage_assignment"]() if self.model.built else None

    # Running ----------------------------------------------------------------------------------

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:
        """Configure the model for training, as `keras.Model.compile` does.

        An optimizer of `ipu.optimizers` or `ipu.keras.optimizers` says how gradients are put
        together, and the one that it wraps updates the weights.
        """
        wishes = optimizers.read(optimizer)
        if isinstance(optimizer, optimizers.IpuOptimizer):
            optimizer.compiled_with(self.model)
        PreparedModel.of(self.model).gradient_map = wishes.gradient_map
        if wishes.accumulation is not None:
            self.accumulation = wishes.accumulation.count
            self.method = wishes.accumulation.method
            self.accumulation_dtype = wishes.accumulation.dtype
        if (wishes.reduction, wishes.loss_scale) != (self.reduction, self.loss_scale):
            self.reduction, self.loss_scale = wishes.reduction, wishes.loss_scale
            self._move(len(self.engine.devices))
        self.compiled_with = args, kwargs
        self._compile(wishes.optimizer)

    def _compile(self, optimizer: Any) -> None:
        """Compile, with metrics of each replica if they are asked for."""
        assert self.compiled_with is not None
        args, kwargs = self.compiled_with
        method, replicas = self.metric_method, len(self.engine.devices)
        one_value = method == ReplicatedMetricReductionMethod.NONE
        if one_value or replicas == 1 or self._stages() is not None:
            self.native["compile"](optimizer, *args, **kwargs)
            return
        signature = inspect.signature(keras.Model.compile)
        arguments = signature.bind(self.model, optimizer, *args, **kwargs).arguments
        arguments.pop("self")
        changed = {
            name: keras.tree.map_structure(
                lambda metric: counted_by_replica(metric, replicas, method), arguments[name]
            )
            for name in ("metrics", "weighted_metrics")
            if arguments.get(name) is not None
        }
        self.native["compile"](**arguments | changed)
        loss = PerReplica(keras.metrics.Mean(name="loss"), replicas, method)
        keras_bridge.track_loss_by(self.model, loss)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Train the model, as `keras.Model.fit` does.

        `batch_size` is the micro-batch of one replica. `steps_per_epoch` counts the batches of
        all replicas. The data must come in whole batches, and these in whole executions.
        """
        self._check_model("fit", ("train_step", "make_train_function"))
        arguments = self._arguments("fit", args, kwargs)
        self._build(arguments.get("x"), arguments.get("batch_size"))
        accumulation, replicas = self._prepare("fit")
        self._check_optimizer(accumulation.count)
        per_replica = steps.steps_per_replica(arguments, replicas)
        steps.check_execution(per_replica, self.model.steps_per_execution, accumulation.count)
        if arguments.get("steps_per_epoch") is not None:
            arguments["steps_per_epoch"] = per_replica
        batch = arguments.get("batch_size")
        if batch is not None:
            notice.log.info(
                f"A weight update is made from {batch} x {accumulation.count} x {replicas} samples."
            )
        return self.native["fit"](**arguments)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Compute loss and metrics, as `keras.Model.evaluate` does; no sample is left out."""
        self._check_model("evaluate", ("make_test_function",))
        if self._has_own("test_step"):
            return type(self.model).evaluate(self.model, *args, **kwargs)
        return self._run("evaluate", args, kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's outputs, as `keras.Model.predict` does."""
        self._check_model("predict", ("make_predict_function",))
        if self._has_own("predict_step"):
            return type(self.model).predict(self.model, *args, **kwargs)
        return self._run("predict", args, kwargs)

    def _has_own(self, step: str) -> bool:
        """Say whether the model's class has its own step, which stock Keras then runs.

        Raises:
            RuntimeError: if the model is in stages.
        """
        if not keras_bridge.overridden(self.model, (step,)):
            return False
        if self._stages() is not None:
            raise RuntimeError(
                f"{type(self.model).__name__} overrides {step}, which a model in stages does not "
                "run. Leave it out, or call reset_pipeline_stage_assignment()."
            )
        return True

    def _run(self, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        arguments = self._arguments(name, args, kwargs)
        self._build(arguments.get("x"), arguments.get("batch_size"))
        _, replicas = self._prepare(name)
        if arguments.get("steps") is not None:
            arguments["steps"] = steps.of_each_replica(arguments["steps"], replicas)
        return self.native[name](**arguments)

    def _arguments(self, name: str, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        return inspect.signature(self.native[name]).bind(*args, **kwargs).arguments

    def _check_model(self, method: str, names: tuple[str, ...]) -> None:
        own = [n for n in names if getattr(type(self.model), n) is not getattr(keras.Model, n)]
        if own:
            raise RuntimeError(
                f"{type(self.model).__name__} overrides {own[0]}, which {method}() does not run on "
                "an IPUStrategy. Make the strategy with enable_keras_extensions=False."
            )
        if self._stages() is not None and keras_bridge.overrides_call(self.model):
            raise RuntimeError(
                f"{type(self.model).__name__} overrides call(), which a model in stages does not "
                "run. Put what it does into layers."
            )
        if self.model.compiled and self.model.run_eagerly:
            raise RuntimeError("run_eagerly=True was passed to compile(). Leave it out.")
        if type(self.model).call is keras.Model.call:
            raise NotImplementedError(
                f"{type(self.model).__name__} has no call(). Define what it computes in call()."
            )

    def _check_optimizer(self, accumulation: int) -> None:
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # under a loss scale
        gathers = accumulation > 1 or self._stages() is not None
        if gathers and hasattr(optimizer, "minimize"):
            raise ValueError(
                f"{type(optimizer).__name__} defines minimize(), which is not called when "
                "gradients of several micro-batches are put together. Override apply() or "
                "update_step() instead."
            )

    def _build(self, x: Any, batch_size: int | None) -> None:
        """Build a model whose stages were given, or written into it, before shapes are known."""
        trace_stages(self.model, x)
        if self.pending_stages is not None:
            if not self.model.built:
                if not hasattr(x, "shape"):
                    raise ValueError(
                        f"{self.model.name!r} has stages, but the shape of its input is not known "
                        "yet. Call model.build(shape) first, or begin it with a keras.Input."
                    )
                self.model.build((batch_size, *x.shape[1:]))
            self._assign()

    def _prepare(self, method: str) -> tuple[Accumulation, int]:
        """Hand the options to the engine; return how it accumulates, and its replicas."""
        accumulation, replicas = self._divide(training=method == "fit")
        gathers = self.accumulate_outfeed and self._stages() is not None and method != "predict"
        self.native["set_asynchronous_callbacks"](self.asynchronous and not gathers)
        return accumulation, replicas

    def _divide(self, *, training: bool) -> tuple[Accumulation, int]:
        stages = self._stages()
        if stages is None:
            if not self.in_one_piece and assignment.is_all_in_the_first_stage(self.model):
                raise ValueError(
                    f"All layers of {self.model.name!r} are in PipelineStage(0). Use two stages or "
                    "more, or call reset_pipeline_stage_assignment() for a model in one piece."
                )
            accumulation = Accumulation(self.accumulation, self.method, self.accumulation_dtype)
            self._apply((accumulation, None))
            return accumulation, len(self.engine.devices)
        options = self.pipeline
        last = max(stages)
        count = options.count or 1
        if training:
            count = options.check(last + 1, on_io_tiles=self.engine.on_io_tiles)
        accumulation = Accumulation(count, self.method, options.dtype)
        if training and self.engine.allow_recompute:
            options.check_recomputation()
        width = max(options.device_mapping or [last]) + 1
        replicas = self._fill(width)
        self._apply((accumulation, options))
        return accumulation, replicas

    def _fill(self, width: int) -> int:
        """Use as many devices as whole replicas take, each rounded up to a power of two."""
        devices = len(self.made_under.devices)
        if width > devices:
            raise ValueError(
                f"{self.model.name!r} is in stages on {width} devices, but {devices} are "
                "configured. Select more, or pass a device_mapping that shares devices."
            )
        # Fewer than a power of two are still one replica, as long as its stages have a place.
        replicas = max(1, devices // (1 << (width - 1).bit_length()))
        if devices // width > replicas and len(self.engine.devices) != replicas * width:
            self._move(replicas * width)
        return replicas

    def _move(self, count: int) -> None:
        """Have the model run on the first devices of its strategy, as its optimizer says."""
        made_under = self.made_under
        changed = made_under.changed(
            count=count, reduction=self.reduction, loss_scale=self.loss_scale
        )
        convoy.prepare(self.model, changed)
        self.made_under = made_under

    def _apply(self, settings: tuple[Accumulation, PipelineOptions | None]) -> None:
        # Told again, the engine would compile again.
        if settings == self.applied:
            return
        accumulation, options = settings
        if options is not None:
            self.native["set_pipelining_options"](
                schedule=SCHEDULES[options.schedule],
                device_mapping=options.device_mapping,
                recompute=self.engine.allow_recompute,
            )
        self.native["set_gradient_accumulation"](
            accumulation.count, reduction=accumulation.reduction, dtype=accumulation.dtype
        )
        self.applied = settings


def extend(model: keras.Model, engine: Engine) -> None:
    """Give a model that a strategy has just taken in Graphcore's methods.

    What was said about it under another strategy stays.
    """
    extensions = vars(model).get(_ATTRIBUTE) or Extensions(model)
    vars(model)[_ATTRIBUTE] = extensions
    extensions.install(engine)
