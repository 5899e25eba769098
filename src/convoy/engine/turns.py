"""Turns of the threads that run one model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import keras

TRAINING = ("fit", "train_on_batch")


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
                f"{''.join(running)}(). Wait until that has ended, or make a second model."
            )
        self._running.append(method)
        try:
            yield
        finally:
            self._running.pop()
            self._lock.release()
