"""The choice between the engine and stock Keras for each call of a model's method."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature

from convoy import keras_bridge, user_warnings
from convoy.engine import stock_path
from convoy.engine.turns import Turns
from convoy.pipeline.stages import stage_assignment
from convoy.trainer.engine_model import EngineModel
from convoy.types import PyTree

Method = Callable[..., PyTree]


class Routing:
    """Sends calls of one model's methods to the engine, or to stock Keras."""

    def __init__(self, engine_model: EngineModel) -> None:
        self.engine_model = engine_model
        self.model = engine_model.model
        self._turns = Turns(engine_model.model)
        self._noticed: set[str] = set()

    def route(self, name: str, on_engine: Method) -> Method:
        """Return a method that runs on the engine, or by stock Keras if the engine has no path."""
        names = list(signature(on_engine).parameters)

        @wraps(on_engine)
        def method(*args: PyTree, **kwargs: PyTree) -> PyTree:
            bound = dict(zip(names, args, strict=False)) | kwargs
            inputs = [bound.get(key) for key in ("x", "validation_data")]
            reason = stock_path.reason(self.model, name, inputs)
            if reason is None:
                asynchronous = self.engine_model.runner.asynchronous_callbacks
                with self._turns.take(name, asynchronous):
                    return on_engine(*args, **kwargs)
            self._check_requests(name, reason)
            if reason.why not in self._noticed:
                self._noticed.add(reason.why)
                user_warnings.warn(
                    f"{reason.why} Stock Keras runs {name}() of {self.model.name!r}. "
                    f"{reason.remedy}"
                )
            return keras_bridge.stock_method(self.model, name)(*args, **kwargs)

        return method

    def _check_requests(self, name: str, reason: stock_path.Reason) -> None:
        """Raise an error if the strategy asks for what stock Keras cannot do."""
        replicas = self.engine_model.runner.config.replicas
        requests = [f"{replicas} replicas"] if replicas > 1 else []
        has_stages = self.engine_model.prepared.deferred_split is not None
        has_stages = has_stages or stage_assignment(self.model) is not None
        requests += self.engine_model.divisions(name, has_stages)
        if requests:
            raise ValueError(
                f"{reason.why} Only stock Keras can run that, without {', '.join(requests)}. "
                f"{reason.remedy}"
            )
