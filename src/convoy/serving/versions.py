"""The versions of one model: which are there, which are loaded, and which answers a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from convoy.serving import artifact
from convoy.serving.batching import Batcher, BatchOptions, Lanes
from convoy.serving.errors import ArtifactError, Code, ServingError, not_found
from convoy.serving.servable import Servable

logger = logging.getLogger("convoy.serving")

Load = Callable[[Path], Servable]


class State(IntEnum):
    """Where a version is in its life; the numbers are those on the wire."""

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True)
class Policy:
    """Which of the versions in a folder are served.

    Attributes:
        latest: this many of the newest; 0 is all.
        specific: these, whatever else is there.
    """

    latest: int = 1
    specific: tuple[int, ...] = ()

    def choose(self, found: list[int]) -> list[int]:
        if self.specific:
            return [version for version in found if version in self.specific]
        return found[-self.latest :] if self.latest else found


@dataclass(frozen=True)
class ModelConfig:
    """A model that a server has.

    Attributes:
        name: as requests call it.
        path: the folder with its versions.
        policy: which of them.
        labels: names for versions, such as `canary`.
    """

    name: str
    path: Path
    policy: Policy = field(default_factory=Policy)
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass
class VersionStatus:
    """What is to be said of a version."""

    version: int
    state: State
    code: Code = Code.OK
    message: str = ""


class LoadedVersion:
    """A version that answers requests.

    Attributes:
        version: its number.
        servable: its programs.
        batcher: the queue in front of them.
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
        """Wait until nobody uses it, and free it."""
        await self._unused.wait()
        await self.batcher.close()


class ModelVersions:
    """Loads, finds and unloads the versions of one model.

    Args:
        config: which model, and which of its versions.
        options: how requests are put together.
        observe: is told of every batch: the model's name, samples and size.
        load: makes a version ready; called in a thread.
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
        """Return the version that answers a request: the one asked for, or the newest.

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
                raise not_found(f"Servable not found for request: Specific({name}, {version})")
            return self._loaded[version]
        if not self._loaded:
            if any(status.state < State.AVAILABLE for status in self.statuses.values()):
                raise ServingError(Code.UNAVAILABLE, f"Model {name} is being loaded.")
            raise not_found(f"Servable not found for request: Latest({name})")
        return self._loaded[max(self._loaded)]

    def status(self, version: int | None = None, label: str | None = None) -> list[VersionStatus]:
        """Return what is known of all versions, or of one, the newest first.

        Raises:
            ServingError: if nothing is.
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
        """Look at the folder; load what is new, then let go of what is no longer wanted."""
        async with self._polling:
            found = await asyncio.to_thread(artifact.versions_in, self.config.path)
            wanted = self.config.policy.choose(found)
            for version in wanted:
                if version not in self._loaded and not self._has_failed(version):
                    await self._make_available(version)
            # A version stays until one that is wanted takes its place.
            if any(version in self._loaded for version in wanted):
                for version in self.available:
                    if version not in wanted:
                        await self._let_go(version)
            for version, status in list(self.statuses.items()):
                if status.state == State.END and version not in found:
                    del self.statuses[version]

    async def close(self) -> None:
        """Let go of all versions, when the requests that use them are answered."""
        async with self._polling:
            for version in self.available:
                await self._let_go(version)

    def _has_failed(self, version: int) -> bool:
        status = self.statuses.get(version)
        return status is not None and status.code != Code.OK

    async def _make_available(self, version: int) -> None:
        status = self.statuses[version] = VersionStatus(version, State.LOADING)
        path = artifact.folder_of(self.config.path, version)
        logger.info("%s: loading version %d", self.config.name, version)
        try:
            servable = await asyncio.to_thread(self._load, path)
        except ArtifactError as error:
            self._fail(status, Code.FAILED_PRECONDITION, str(error))
        except Exception as error:  # whatever the compiler raised
            self._fail(status, Code.INTERNAL, f"{path} could not be compiled: {error}")
        else:
            lanes = Lanes(servable.lanes, servable.run_in_lane, servable.lane_seconds)
            batcher = Batcher(
                servable.run,
                servable.seconds,
                self._options,
                self._observed,
                lanes if lanes.count > 1 else None,
            )
            self._loaded[version] = LoadedVersion(version, servable, batcher)
            status.state = State.AVAILABLE
            logger.info("%s: version %d is available", self.config.name, version)

    def _fail(self, status: VersionStatus, code: Code, message: str) -> None:
        status.state, status.code, status.message = State.END, code, message
        logger.error("%s: version %d: %s", self.config.name, status.version, message)

    def _observed(self, samples: int, size: int) -> None:
        self._observe(self.config.name, samples, size)

    async def _let_go(self, version: int) -> None:
        self.statuses[version].state = State.UNLOADING
        loaded = self._loaded.pop(version)
        await loaded.unload()
        self.statuses[version].state = State.END
        logger.info("%s: version %d is unloaded", self.config.name, version)
