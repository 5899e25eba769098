"""The versions of one model: loading, selection by number or label, and unloading."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path

from convoy.serving import artifact
from convoy.serving.artifact import Fingerprint, UnreadableError
from convoy.serving.batching import Batcher, BatchOptions, Streams
from convoy.serving.errors import (
    ArtifactError,
    Code,
    ServingError,
    describe_compile_error,
    not_found,
    shorten,
)
from convoy.serving.loading import Loader, run_in_daemon
from convoy.serving.servable import Servable
from convoy.serving.trial import PassingError

logger = logging.getLogger("convoy.serving")

Load = Callable[[Path], Awaitable[Servable]]

# A version that failed is tried again when its files change, or when the cause may pass: after this
# time, then twice that, ..., and not before as much time as the last attempt took.
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
# Without a limit, the number would not fit into a `float` after a day of failures.
MAX_DOUBLINGS = 10
# Maximum time to search a folder for versions.
SEARCH_SECONDS = 60.0


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
    name = shorten(model)
    wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return not_found(f"Servable not found for request: {wanted}")


@dataclass
class _Attempt:
    """The last attempt to load a version.

    Attributes:
        fingerprint: the files that were loaded.
        failures: number of attempts that failed, one after the other.
        may_pass: whether the last one may succeed later with the same files.
        retry_at: time before which there is no other attempt.
    """

    fingerprint: Fingerprint
    failures: int = 0
    may_pass: bool = False
    retry_at: float = 0.0


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

    Each version is loaded in a separate task, so one that blocks does not delay others.

    Args:
        config: the model and its versions to serve.
        options: the options of batching.
        observe: function that is called with the model's name, the number of samples and the batch
            size of each call.
        load: function that loads a version.
    """

    def __init__(
        self,
        config: ModelConfig,
        options: BatchOptions,
        observe: Callable[[str, int, int], None],
        load: Load | None = None,
    ) -> None:
        self.config = config
        self.statuses: dict[int, VersionStatus] = {}
        self._options = options
        self._observe = observe
        self._load = load or Loader().load
        self._loaded: dict[int, LoadedVersion] = {}
        self._attempts: dict[int, _Attempt] = {}
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._unloads: set[asyncio.Task[None]] = set()
        self._wanted: list[int] = []
        self._searching = asyncio.Lock()
        self._closed = False

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
                message = f"Unrecognized servable version label: {shorten(label)}"
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

    @property
    def is_searching(self) -> bool:
        """Whether the folder is being searched for versions."""
        return self._searching.locked()

    async def poll(self) -> None:
        """Search for versions, load new ones, and unload those that are no longer selected."""
        await self.search()
        while pending := {*self._loads.values(), *self._unloads}:
            await asyncio.wait(pending)

    async def search(self) -> None:
        """Search for versions, and start to load and unload them."""
        async with self._searching:
            policy, path = self.config.policy, self.config.path
            async with asyncio.timeout(SEARCH_SECONDS):
                found, fingerprints = await run_in_daemon(lambda: _search(path, policy))
            if self._closed:
                return
            self._wanted = list(fingerprints)
            for version, fingerprint in fingerprints.items():
                if self._should_load(version, fingerprint):
                    load = self._load_version(version, found[version], fingerprint)
                    self._loads[version] = asyncio.create_task(load)
            self._unload_others()
            for version, status in list(self.statuses.items()):
                if status.state == State.END and version not in found:
                    del self.statuses[version]
                    self._attempts.pop(version, None)

    async def close(self) -> None:
        """Unload all versions after the requests that use them are answered."""
        self._closed = True
        for load in list(self._loads.values()):
            load.cancel()
        for version in self.available:
            self._unload(version)
        while self._loads or self._unloads:
            await asyncio.wait({*self._loads.values(), *self._unloads})

    def _should_load(self, version: int, fingerprint: Fingerprint) -> bool:
        """Return whether a version is new, or another attempt is due and may succeed."""
        attempt = self._attempts.get(version)
        if version in self._loads:
            return False
        if attempt is None or (attempt.failures == 0 and version not in self._loaded):
            return True
        may_succeed = attempt.may_pass or attempt.fingerprint != fingerprint
        return may_succeed and time.monotonic() >= attempt.retry_at

    async def _load_version(self, version: int, path: Path, fingerprint: Fingerprint) -> None:
        name = self.config.name
        previous = self._attempts.get(version)
        attempt = self._attempts[version] = _Attempt(fingerprint)
        began = time.monotonic()
        status = VersionStatus(version, State.LOADING)
        if version not in self._loaded:
            self.statuses[version] = status
        logger.info("%s: loading version %d", name, version)
        try:
            self._serve(version, await self._load(path))
        except asyncio.CancelledError:
            status.state = State.END
            raise
        except Exception as error:  # The compiler can raise anything.
            attempt.failures = 1 + (previous.failures if previous else 0)
            attempt.may_pass = _may_pass(error)
            doubled = min(attempt.failures - 1, MAX_DOUBLINGS)
            wait = min(FIRST_RETRY_SECONDS * 2**doubled, MAX_RETRY_SECONDS)
            ended = time.monotonic()
            attempt.retry_at = ended + max(wait, ended - began)
            if isinstance(error, ArtifactError):
                _fail(name, status, Code.FAILED_PRECONDITION, str(error))
            else:
                _fail(name, status, Code.INTERNAL, describe_compile_error(path, error))
        finally:
            del self._loads[version]
            self._unload_others()

    def _serve(self, version: int, servable: Servable) -> None:
        """Start to serve a version, in place of an earlier one with the same number."""
        if version in self._loaded:
            logger.info("%s: version %d is replaced", self.config.name, version)
            self._unload(version)
        streams = None
        if servable.streams > 1:
            streams = Streams(servable.streams, servable.run_in_stream, servable.stream_seconds)
        observe = partial(self._observe, self.config.name)
        batcher = Batcher(servable.run, servable.seconds, self._options, observe, streams)
        self._loaded[version] = LoadedVersion(version, servable, batcher)
        self.statuses[version] = VersionStatus(version, State.AVAILABLE)
        logger.info("%s: version %d is available", self.config.name, version)

    def _unload_others(self) -> None:
        """Unload versions that are not selected; an old one stays until a new one is available."""
        if not self._closed and any(version in self._loaded for version in self._wanted):
            for version in self.available:
                if version not in self._wanted:
                    self._unload(version)

    def _unload(self, version: int) -> None:
        status = self.statuses[version]
        status.state = State.UNLOADING
        loaded = self._loaded.pop(version)

        async def unload() -> None:
            await loaded.unload()
            status.state = State.END
            logger.info("%s: version %d is unloaded", self.config.name, version)

        task = asyncio.create_task(unload())
        self._unloads.add(task)
        task.add_done_callback(self._unloads.discard)


def _search(path: Path, policy: VersionPolicy) -> tuple[dict[int, Path], dict[int, Fingerprint]]:
    """Return the folders of all versions, and the fingerprints of those to serve."""
    found = artifact.versions_in(path)
    return found, {
        number: artifact.fingerprint(found[number]) for number in policy.choose([*found])
    }


def _may_pass(error: Exception) -> bool:
    """Return whether a load may succeed later with the same files.

    Examples are too many open files, a lack of memory, and a disk or machine that is slow now.
    """
    if isinstance(error, (OSError, PassingError, UnreadableError)):
        return True
    # The error of a load that took too long replaces a `TimeoutError`.
    return isinstance(error.__context__, TimeoutError)


def _fail(model: str, status: VersionStatus, code: Code, message: str) -> None:
    status.state, status.code, status.message = State.END, code, message
    logger.error("%s: version %d: %s", model, status.version, message)
