"""The choice between the engine and stock Keras for each call, and the locking between threads."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import signature

import keras
from convoy import keras_bridge, user_warnings
from convoy.engine.checkpointer import find_checkpointer
from convoy.keras_bridge import StockReason
from convoy.pipeline.stages import stage_assignment
from convoy.trainer.engine_model import TRAINING, EngineModel
from convoy.trainer.methods import Callbacks
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
        """Return a method that runs on the engine, or in stock Keras if the engine cannot."""
        names = list(signature(on_engine).parameters)

        @wraps(on_engine)
        def method(*args: PyTree, **kwargs: PyTree) -> PyTree:
            bound = dict(zip(names, args, strict=False)) | kwargs
            inputs = [bound.get(key) for key in ("x", "validation_data")]
            validates = inputs[1] is not None or bool(bound.get("validation_split"))
            reason = keras_bridge.stock_reason(self.model, name, inputs, validates=validates)
            if reason is None:
                asynchronous = self.engine_model.host_loop.asynchronous_callbacks
                with self._turns.take(name, asynchronous):
                    return on_engine(*args, **kwargs)
            self._check_requests(name, reason, bound.get("callbacks"))
            if reason.why not in self._noticed:
                self._noticed.add(reason.why)
                user_warnings.warn(
                    f"{reason.why} Stock Keras runs {name}() of {self.model.name!r}. "
                    f"{reason.remedy}"
                )
            return keras_bridge.stock_method(self.model, name)(*args, **kwargs)

        return method

    def _check_requests(self, name: str, reason: StockReason, callbacks: Callbacks) -> None:
        """Raise an error if the strategy or a callback needs a feature that stock Keras lacks."""
        replicas = self.engine_model.host_loop.config.replicas
        requests = [f"{replicas} replicas"] if replicas > 1 else []
        has_stages = self.engine_model.prepared.deferred_split is not None
        has_stages = has_stages or stage_assignment(self.model) is not None
        requests += self.engine_model.dividing_options(name, has_stages)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = callbacks.callbacks
        if find_checkpointer(keras.tree.flatten(callbacks)) is not None:
            requests.append("convoy.Checkpoints")
        if requests:
            raise ValueError(
                f"{reason.why} Stock Keras runs such a model, and does not support "
                f"{', '.join(requests)}. {reason.remedy}"
            )


class Turns:
    """Lets one thread at a time run a model.

    A device call takes the values of the variables away and returns new ones, so two threads cannot
    run one model at once. Evaluation and prediction wait for each other; training does not wait.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self._lock = threading.RLock()
        self._running: list[str] = []

    @contextlib.contextmanager
    def take(self, method: str, asynchronous_callbacks: bool = False) -> Iterator[None]:
        """Run a method of the model in the block.

        Args:
            method: its name.
            asynchronous_callbacks: whether callbacks run in another thread, where they may call it.

        Raises:
            RuntimeError: if another thread runs the model, and one of the two trains it.
        """
        running = self._running[-1:]
        trains = method in TRAINING or any(name in TRAINING for name in self._running)
        if asynchronous_callbacks and running:
            yield
            return
        if not self._lock.acquire(blocking=not trains):
            raise RuntimeError(
                f"{method}() was called on {self.model.name!r} while another thread runs "
                f"{''.join(running)}(). Wait until it has finished, or use another model."
            )
        self._running.append(method)
        try:
            yield
        finally:
            self._running.pop()
            self._lock.release()
