"""The models of a server, for all protocols: lookup, inference, deadlines and request metrics."""

import asyncio
import contextlib
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

from convoy.context import bound
from convoy.serving import admission
from convoy.serving.admission import Admission, AdmissionOptions
from convoy.serving.artifact import MAX_VERSION
from convoy.serving.batching import BatchOptions
from convoy.serving.decoding import Decoders
from convoy.serving.errors import (
    Code,
    ServingError,
    deadline_exceeded,
    describe_error,
    invalid,
    not_found,
    shorten,
    show,
)
from convoy.serving.loading import Loader
from convoy.serving.metrics import Metrics
from convoy.serving.signature import Arrays
from convoy.serving.versions import (
    LoadedVersion,
    ModelConfig,
    ModelVersions,
    VersionStatus,
    servable_not_found,
)

logger = logging.getLogger("convoy.serving")

_LABEL = re.compile(r"[a-zA-Z0-9_]+")
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
        if version is not None and (len(version) > 19 or int(version) > MAX_VERSION):
            raise invalid(f"Failed to convert version: {shorten(version)} to numeric.")
        if label is not None and not _LABEL.fullmatch(label):
            raise invalid(f"Label {show(label)} has characters other than letters, digits and _.")
        return cls(parts["model"], None if version is None else int(version), label)


class Service:
    """The models of a server.

    Args:
        configs: the models.
        options: the batching of requests.
        request_seconds: maximum time for one request.
        limits: the limits of requests.
        loader: loader of versions.

    Attributes:
        admission: the budgets of requests.
        decoders: the threads that decode requests.
        request_seconds: maximum time for one request.
        is_stopping: whether clients should go to another server.
    """

    def __init__(
        self,
        configs: Iterable[ModelConfig],
        options: BatchOptions,
        request_seconds: float = 60.0,
        limits: AdmissionOptions | None = None,
        loader: Loader | None = None,
    ) -> None:
        self.is_stopping = False
        self.metrics = Metrics()
        self.admission = Admission(limits or AdmissionOptions(), options.max_enqueued_samples)
        self.decoders = Decoders()
        self._loader = loader or Loader()
        self._searches: set[asyncio.Task[None]] = set()
        self.models: dict[str, ModelVersions] = {}
        self.request_seconds = request_seconds
        self._options = options
        self._changing = asyncio.Lock()
        for config in configs:
            self.models[config.name] = self._make(config)

    def _make(self, config: ModelConfig) -> ModelVersions:
        return ModelVersions(config, self._options, self.metrics.batch, self._loader.load)

    def find(self, target: Target) -> LoadedVersion:
        """Return the version that answers a request.

        Raises:
            ServingError: if there is none.
        """
        if target.model not in self.models:
            raise servable_not_found(target.model, target.version)
        return self.models[target.model].find(target.version, target.label)

    def max_body_bytes(self, target: Target) -> int:
        """Return the maximum size of a request over HTTP."""
        try:
            return self.admission.max_body_bytes(self.find(target).servable.signature)
        except ServingError:
            # The error is sent after the request has arrived.
            return self.admission.max_request_bytes

    def status(self, target: Target) -> list[VersionStatus]:
        """Return the status of all versions of a model, or of the one that the target names.

        Raises:
            ServingError: if there is none.
        """
        if target.model not in self.models:
            raise not_found(f"Could not find any versions of model {shorten(target.model)}")
        return self.models[target.model].status(target.version, target.label)

    async def run(self, loaded: LoadedVersion, arrays: Arrays) -> Arrays:
        """Compute the outputs of a request.

        Raises:
            ServingError: if the arrays do not fit the signature, or the queue is full.
        """
        signature = loaded.servable.signature
        samples = signature.check(arrays)
        admission.check_samples(samples, self.admission.max_samples)
        if reservation := admission.current():
            reservation.reserve_outputs(signature, samples)
        return await loaded.batcher.submit(arrays, samples)

    @contextlib.asynccontextmanager
    async def deadline(self) -> AsyncIterator[None]:
        """Limit the time of the request that is handled in the block.

        Raises:
            ServingError: if it takes longer than `request_seconds`.
        """
        end = asyncio.get_running_loop().time() + self.request_seconds
        try:
            with bound(_deadline, end):
                async with asyncio.timeout_at(end):
                    yield
        except TimeoutError:
            raise deadline_exceeded(self.request_seconds) from None

    @contextlib.contextmanager
    def using(self, target: Target, method: str) -> Iterator[LoadedVersion]:
        """Keep the version that answers a request loaded during the block, and count the request.

        Raises:
            ServingError: if there is none.
        """
        # Unknown names share one label, because clients could send any number of them.
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
        """Whether every model has an available version, and the server is not about to stop."""
        return not self.is_stopping and all(versions.available for versions in self.models.values())

    def metrics_text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        for name, versions in self.models.items():
            loaded = [versions.find(version) for version in versions.available]
            waiting = sum(version.batcher.waiting_samples for version in loaded)
            self.metrics.state(name, len(loaded), waiting)
        return self.metrics.text()

    async def poll(self) -> None:
        """Load new versions of every model, and wait until they are loaded."""
        await asyncio.gather(*(_logged(model.poll(), model) for model in self.models.values()))

    def search(self) -> None:
        """Start to search for new versions of every model that is not being searched."""
        for model in self.models.values():
            if not model.is_searching:
                task = asyncio.create_task(_logged(model.search(), model))
                self._searches.add(task)
                task.add_done_callback(self._searches.discard)

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
            await self.poll()
            await asyncio.gather(*(versions.close() for versions in removed))

    async def close(self) -> None:
        """Unload all models after their accepted requests are answered."""
        for search in list(self._searches):
            search.cancel()
        await asyncio.gather(*(versions.close() for versions in self.models.values()))
        self.decoders.close()
        await self._loader.close()


async def _logged(work: Awaitable[None], model: ModelVersions) -> None:
    """Log an error of the search for versions; the search continues for other models."""
    try:
        await work
    except Exception as error:  # A file system can raise anything.
        reason = describe_error(error)
        logger.error("%s: the search for new versions failed: %s", model.config.name, reason)
