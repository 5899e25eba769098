"""The models of a server, for all protocols: lookup, inference, deadlines and request metrics."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

from convoy.serving.batching import BatchOptions
from convoy.serving.errors import Code, ServingError, invalid, not_found
from convoy.serving.metrics import Metrics
from convoy.serving.signature import Arrays
from convoy.serving.versions import (
    LoadedVersion,
    ModelConfig,
    ModelVersions,
    VersionStatus,
    servable_not_found,
)

_LABEL = re.compile(r"[a-zA-Z0-9_]+")
_MAX_VERSION = 2**63 - 1
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


@dataclass(frozen=True)
class Target:
    """The model that a request addresses; by default its newest version."""

    model: str
    version: int | None = None
    label: str | None = None

    @classmethod
    def from_path(cls, parts: Mapping[str, str]) -> Self:
        """Return the target that the parts of a URL's path name.

        Raises:
            ServingError: if the version is too large, or the label has invalid characters.
        """
        version, label = parts.get("version"), parts.get("label")
        if version is not None and (len(version) > 19 or int(version) > _MAX_VERSION):
            raise invalid(f"Failed to convert version: {version} to numeric.")
        if label is not None and not _LABEL.fullmatch(label):
            raise invalid(f"Label {label!r} has other characters than letters, digits and _.")
        return cls(parts["model"], None if version is None else int(version), label)


def check_token(expected: str | None, given: str, place: str) -> None:
    """Check the bearer token of a request.

    Args:
        expected: the token that clients must send, if any.
        given: the authorization that the request has.
        place: the part of a request that has the authorization, for the error.

    Raises:
        ServingError: if the token is another.
    """
    if expected is None:
        return
    if not hmac.compare_digest(given.encode(errors="replace"), f"Bearer {expected}".encode()):
        raise ServingError(Code.UNAUTHENTICATED, f"Send the {place}: Bearer ...")


class Service:
    """The models of a server.

    Args:
        configs: the models.
        options: the batching of requests.
        request_seconds: maximum time for one request.
    """

    def __init__(
        self, configs: Iterable[ModelConfig], options: BatchOptions, request_seconds: float = 60.0
    ) -> None:
        self.metrics = Metrics()
        self.models: dict[str, ModelVersions] = {}
        self._request_seconds = request_seconds
        self._options = options
        self._changing = asyncio.Lock()
        for config in configs:
            self.models[config.name] = self._make(config)

    def _make(self, config: ModelConfig) -> ModelVersions:
        return ModelVersions(config, self._options, self.metrics.batch)

    def find(self, target: Target) -> LoadedVersion:
        """Return the version that answers a request.

        Raises:
            ServingError: if there is none.
        """
        if target.model not in self.models:
            raise servable_not_found(target.model, target.version)
        return self.models[target.model].find(target.version, target.label)

    def status(self, target: Target) -> list[VersionStatus]:
        """Return the status of all versions of a model, or of the one that the target names.

        Raises:
            ServingError: if there is none.
        """
        if target.model not in self.models:
            raise not_found(f"Could not find any versions of model {target.model}")
        return self.models[target.model].status(target.version, target.label)

    async def run(self, loaded: LoadedVersion, arrays: Arrays) -> Arrays:
        """Compute the outputs of a request.

        Raises:
            ServingError: if the arrays do not fit the signature, or the queue is full.
        """
        samples = loaded.servable.signature.check(arrays)
        return await loaded.batcher.submit(arrays, samples)

    @contextlib.asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Limit the time of the request that is handled in the block.

        Raises:
            ServingError: if it takes longer than `request_seconds`.
        """
        token = _deadline.set(asyncio.get_running_loop().time() + self._request_seconds)
        try:
            async with asyncio.timeout(self._request_seconds):
                yield
        except TimeoutError:
            message = f"The request took longer than {self._request_seconds:g} seconds."
            raise ServingError(Code.DEADLINE_EXCEEDED, message) from None
        finally:
            _deadline.reset(token)

    @contextlib.contextmanager
    def using(self, target: Target, method: str) -> Iterator[LoadedVersion]:
        """Keep the version that answers a request loaded during the block, and count the request.

        Raises:
            ServingError: if there is none.
        """
        # Unknown names share one label: clients could invent any number of them.
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
            expired = asyncio.get_running_loop().time() >= _deadline.get()
            code = Code.DEADLINE_EXCEEDED if expired else Code.CANCELLED
            raise
        finally:
            self.metrics.answered(model, method, code, time.perf_counter() - began)

    @property
    def is_ready(self) -> bool:
        """Whether every model has an available version."""
        return all(versions.available for versions in self.models.values())

    def metrics_text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        for name, versions in self.models.items():
            loaded = [versions.find(version) for version in versions.available]
            waiting = sum(version.batcher.waiting_samples for version in loaded)
            self.metrics.state(name, len(loaded), waiting)
        return self.metrics.text()

    async def poll(self) -> None:
        """Load new versions of every model."""
        async with self._changing:
            models = list(self.models.values())
        for versions in models:
            await versions.poll()

    async def configure(self, configs: Iterable[ModelConfig]) -> None:
        """Replace the list of models; models that are no longer listed are unloaded."""
        async with self._changing:
            wanted = {config.name: config for config in configs}
            removed = [self.models.pop(name) for name in set(self.models) - set(wanted)]
            for name, config in wanted.items():
                if name in self.models and self.models[name].config.path == config.path:
                    self.models[name].config = config
                    continue
                if name in self.models:
                    removed.append(self.models.pop(name))
                self.models[name] = self._make(config)
            for versions in self.models.values():
                await versions.poll()
            for versions in removed:
                await versions.close()

    async def close(self) -> None:
        """Unload all models after their accepted requests are answered."""
        for versions in self.models.values():
            await versions.close()
