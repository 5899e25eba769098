"""The versions of one model: loading, selection by number or label, and unloading."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path

from convoy.serving import artifact
from convoy.serving.batching import Batcher, BatchOptions, Streams
from convoy.serving.errors import ArtifactError, Code, ServingError, not_found
from convoy.serving.servable import Servable

logger = logging.getLogger("convoy.serving")

Load = Callable[[Path], Servable]


class State(IntEnum):
    """State of a version in its life cycle; the numbers are those of the protocol."""

    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True)
class VersionPolicy:
    """The versions in a folder that are served.

    Attributes:
        latest: number of newest versions; 0 means all.
        specific: version numbers; if given, only these are served.
    """

    latest: int = 1
    specific: tuple[int, ...] = ()

    def choose(self, found: list[int]) -> list[int]:
        if self.specific:
            return [version for version in found if version in self.specific]
        return found[-self.latest :] if self.latest else found


@dataclass(frozen=True)
class ModelConfig:
    """A model to serve.

    Attributes:
        name: the name in requests.
        path: the folder with its versions.
        policy: the versions to serve.
        labels: version numbers by label, such as `canary`.
    """

    name: str
    path: Path
    policy: VersionPolicy = field(default_factory=VersionPolicy)
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass
class VersionStatus:
    """State of a version, with the error if loading failed."""

    version: int
    state: State
    code: Code = Code.OK
    message: str = ""


def servable_not_found(model: str, version: int | None) -> ServingError:
    """Return the error of a request for a version, or for the newest one, that is not available."""
    wanted = f"Latest({model})" if version is None else f"Specific({model}, {version})"
    return not_found(f"Servable not found for request: {wanted}")


class LoadedVersion:
    """A version in memory that answers requests.

    Attributes:
        version: the version number.
        servable: the compiled programs.
        batcher: the queue of requests.
    """

    def __init__(self, version: int, servable: Servable, batcher: Batcher) -> None:
        self.version = version
        self.servable = servable
        self.batcher = batcher
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @contextlib.contextmanager
    def use(self) -> Iterator[LoadedVersion]:
        """Keep it loaded until the block ends."""
        self._users += 1
        self._unused.clear()
        try:
            yield self
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def unload(self) -> None:
        """Wait until no request uses the version, then free it."""
        await self._unused.wait()
        await self.batcher.close()


class ModelVersions:
    """Loads, finds and unloads the versions of one model.

    Args:
        config: the model and its versions to serve.
        options: the options of batching.
        observe: function that is called with the model's name, the number of samples and the batch
            size of each call.
        load: function that loads a version; it is called in a thread.
    """

    def __init__(
        self,
        config: ModelConfig,
        options: BatchOptions,
        observe: Callable[[str, int, int], None],
        load: Load = Servable,
    ) -> None:
        self.config = config
        self.statuses: dict[int, VersionStatus] = {}
        self._options = options
        self._observe = observe
        self._load = load
        self._loaded: dict[int, LoadedVersion] = {}
        self._polling = asyncio.Lock()

    @property
    def available(self) -> list[int]:
        return sorted(self._loaded)

    def find(self, version: int | None = None, label: str | None = None) -> LoadedVersion:
        """Return the version of a number or label, or else the newest.

        Raises:
            ServingError: if it is not available.
        """
        name = self.config.name
        if label is not None:
            if label not in self.config.labels:
                message = f"Unrecognized servable version label: {label}"
                raise ServingError(Code.FAILED_PRECONDITION, message)
            version = self.config.labels[label]
        if version is not None:
            if version not in self._loaded:
                raise servable_not_found(name, version)
            return self._loaded[version]
        if not self._loaded:
            if any(status.state < State.AVAILABLE for status in self.statuses.values()):
                raise ServingError(Code.UNAVAILABLE, f"Model {name} is being loaded.")
            raise servable_not_found(name, None)
        return self._loaded[max(self._loaded)]

    def status(self, version: int | None = None, label: str | None = None) -> list[VersionStatus]:
        """Return the status of all versions, newest first, or of one.

        Raises:
            ServingError: if there is none.
        """
        name = self.config.name
        if label is not None:
            version = self.find(label=label).version
        if version is not None:
            if version not in self.statuses:
                raise not_found(f"Could not find version {version} of model {name}")
            return [self.statuses[version]]
        if not self.statuses:
            raise not_found(f"Could not find any versions of model {name}")
        return [self.statuses[number] for number in sorted(self.statuses, reverse=True)]

    async def poll(self) -> None:
        """Load new versions in the folder, then unload those that the policy no longer selects."""
        async with self._polling:
            found = await asyncio.to_thread(artifact.versions_in, self.config.path)
            wanted = self.config.policy.choose(list(found))
            for version in wanted:
                if version not in self._loaded and not self._has_failed(version):
                    await self._load_version(version, found[version])
            # An old version stays until a new one is available.
            if any(version in self._loaded for version in wanted):
                for version in self.available:
                    if version not in wanted:
                        await self._unload(version)
            for version, status in list(self.statuses.items()):
                if status.state == State.END and version not in found:
                    del self.statuses[version]

    async def close(self) -> None:
        """Unload all versions after the requests that use them are answered."""
        async with self._polling:
            for version in self.available:
                await self._unload(version)

    def _has_failed(self, version: int) -> bool:
        status = self.statuses.get(version)
        return status is not None and status.code != Code.OK

    async def _load_version(self, version: int, path: Path) -> None:
        status = self.statuses[version] = VersionStatus(version, State.LOADING)
        logger.info("%s: loading version %d", self.config.name, version)
        try:
            servable = await asyncio.to_thread(self._load, path)
        except ArtifactError as error:
            self._fail(status, Code.FAILED_PRECONDITION, str(error))
        except Exception as error:  # The compiler can raise anything.
            self._fail(status, Code.INTERNAL, f"{path} could not be compiled: {error}")
        else:
            streams = None
            if servable.streams > 1:
                streams = Streams(servable.streams, servable.run_in_stream, servable.stream_seconds)
            observe = partial(self._observe, self.config.name)
            batcher = Batcher(servable.run, servable.seconds, self._options, observe, streams)
            self._loaded[version] = LoadedVersion(version, servable, batcher)
            status.state = State.AVAILABLE
            logger.info("%s: version %d is available", self.config.name, version)

    def _fail(self, status: VersionStatus, code: Code, message: str) -> None:
        status.state, status.code, status.message = State.END, code, message
        logger.error("%s: version %d: %s", self.config.name, status.version, message)

    async def _unload(self, version: int) -> None:
        self.statuses[version].state = State.UNLOADING
        loaded = self._loaded.pop(version)
        await loaded.unload()
        self.statuses[version].state = State.END
        logger.info("%s: version %d is unloaded", self.config.name, version)
