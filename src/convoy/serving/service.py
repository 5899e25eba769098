"""What all protocols share: from a model's name and arrays to outputs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from convoy.serving.batching import BatchOptions
from convoy.serving.errors import Code, ServingError, not_found
from convoy.serving.metrics import Metrics
from convoy.serving.signature import Arrays
from convoy.serving.versions import LoadedVersion, ModelConfig, ModelVersions


@dataclass(frozen=True)
class Target:
    """The model that a request is for, and perhaps which of its versions."""

    model: str
    version: int | None = None
    label: str | None = None


class Service:
    """The models of a server.

    Args:
        configs: which models.
        options: how requests are put together.
        timeout: seconds after which a request is given up.
    """

    def __init__(
        self, configs: Iterable[ModelConfig], options: BatchOptions, timeout: float = 60.0
    ) -> None:
        self.metrics = Metrics()
        self.timeout = timeout
        self.models: dict[str, ModelVersions] = {}
        self._options = options
        self._changing = asyncio.Lock()
        for config in configs:
            self.models[config.name] = self._make(config)

    def _make(self, config: ModelConfig) -> ModelVersions:
        return ModelVersions(config, self._options, self.metrics.batch)

    def model(self, name: str) -> ModelVersions:
        """Return a model by its name.

        Raises:
            ServingError: if there is none.
        """
        if name not in self.models:
            raise not_found(f"Servable not found for request: Latest({name})")
        return self.models[name]

    def find(self, target: Target) -> LoadedVersion:
        """Return the version that answers a request.

        Raises:
            ServingError: if there is none.
        """
        if target.model not in self.models and target.version is not None:
            raise not_found(
                f"Servable not found for request: Specific({target.model}, {target.version})"
            )
        return self.model(target.model).find(target.version, target.label)

    async def run(self, loaded: LoadedVersion, arrays: Arrays) -> Arrays:
        """Compute the outputs of a request.

        Raises:
            ServingError: if the arrays are not what the model takes, the queue is full, or it takes
                too long.
        """
        samples = loaded.servable.signature.check(arrays)
        try:
            async with asyncio.timeout(self.timeout):
                return await loaded.batcher.submit(arrays, samples)
        except TimeoutError:
            raise ServingError(
                Code.DEADLINE_EXCEEDED, f"The request took longer than {self.timeout:g} seconds."
            ) from None

    @contextlib.contextmanager
    def using(self, target: Target, method: str) -> Iterator[LoadedVersion]:
        """Find the version that answers a request; it stays, and is counted, until the block ends.

        Raises:
            ServingError: if there is none.
        """
        # A name that is not a model's is not counted by its name: anybody can make up many.
        model = target.model if target.model in self.models else ""
        began = time.perf_counter()
        code = Code.INTERNAL
        try:
            with self.find(target).use() as loaded:
                yield loaded
            code = Code.OK
        except ServingError as error:
            code = error.code
            raise
        except asyncio.CancelledError:
            code = Code.CANCELLED
            raise
        finally:
            self.metrics.answered(model, method, code, time.perf_counter() - began)

    @property
    def is_ready(self) -> bool:
        """Whether every model has a version that answers requests."""
        return all(versions.available for versions in self.models.values())

    def metrics_text(self) -> bytes:
        for name, versions in self.models.items():
            loaded = [versions.find(version) for version in versions.available]
            waiting = sum(version.batcher.waiting_samples for version in loaded)
            self.metrics.state(name, len(loaded), waiting)
        return self.metrics.text()

    async def poll(self) -> None:
        """Look for new versions of every model."""
        async with self._changing:
            models = list(self.models.values())
        for versions in models:
            await versions.poll()

    async def configure(self, configs: Iterable[ModelConfig]) -> None:
        """Serve these models from now on. Those that are no longer among them are let go."""
        async with self._changing:
            wanted = {config.name: config for config in configs}
            gone = [self.models.pop(name) for name in set(self.models) - set(wanted)]
            for name, config in wanted.items():
                if name in self.models and self.models[name].config.path == config.path:
                    self.models[name].config = config
                    continue
                if name in self.models:
                    gone.append(self.models.pop(name))
                self.models[name] = self._make(config)
            for versions in self.models.values():
                await versions.poll()
            for versions in gone:
                await versions.close()

    async def close(self) -> None:
        """Let go of all models, when what was accepted is answered."""
        for versions in self.models.values():
            await versions.close()
