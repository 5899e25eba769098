import asyncio
import errno
import shutil
import threading

import convoy
import numpy as np
import pytest
from convoy.serving import artifact
from convoy.serving import loading as loading_module
from convoy.serving import versions as versions_module
from convoy.serving.batching import BatchOptions
from convoy.serving.errors import ArtifactError, Code, ServingError
from convoy.serving.loading import Loader, run_in_daemon
from convoy.serving.servable import Servable
from convoy.serving.trial import PassingError
from convoy.serving.versions import ModelConfig, ModelVersions, State, VersionPolicy
from tests.serving.models import half_plus


def versions(folder, policy=None, **labels):
    config = ModelConfig("half", folder, policy or VersionPolicy(), labels)
    return ModelVersions(config, BatchOptions(), lambda *batch: None)


def export(folder, offset):
    return convoy.export(half_plus(offset), folder, batch_sizes=[1])


def states(made):
    return {status.version: status.state for status in made.statuses.values()}


ONE = {"x": np.array([2], np.float32)}


def test_policies_choose():
    found = [1, 5, 7]
    assert VersionPolicy().choose(found) == [7]
    assert VersionPolicy(latest=2).choose(found) == [5, 7]
    assert VersionPolicy(latest=0).choose(found) == found
    assert VersionPolicy(specific=(1, 6)).choose(found) == [1]
    assert VersionPolicy().choose([]) == []


def test_a_new_version_takes_over_and_no_request_is_lost(tmp_path):
    async def test():
        export(tmp_path, 2)
        made = versions(tmp_path)
        await made.poll()
        with made.find().use() as old:
            assert old.version == 1
            export(tmp_path, 3)
            polling = asyncio.create_task(made.poll())
            while made.find().version == 1:
                await asyncio.sleep(0)
            # New requests go to the new version, and the one that has the old one goes on.
            assert states(made) == {1: State.UNLOADING, 2: State.AVAILABLE}
            assert (await made.find().batcher.submit(ONE, 1))["output_0"].tolist() == [4]
            assert not polling.done()
            assert (await old.batcher.submit(ONE, 1))["output_0"].tolist() == [3]
        await polling
        assert states(made) == {1: State.END, 2: State.AVAILABLE}
        await made.close()

    asyncio.run(test())


def test_a_version_that_fails_leaves_the_old_one_in_place(tmp_path):
    async def test():
        export(tmp_path, 2)
        made = versions(tmp_path)
        await made.poll()
        (tmp_path / "2").mkdir()
        await made.poll()
        assert made.find().version == 1
        (failed, fine) = made.status()
        assert (failed.state, failed.code) == (State.END, Code.FAILED_PRECONDITION)
        assert "manifest.json is missing" in failed.message
        assert (fine.state, fine.code) == (State.AVAILABLE, Code.OK)
        await made.close()

    asyncio.run(test())


def test_versions_are_found_by_number_and_label(half_plus_two):
    async def test():
        made = versions(half_plus_two, VersionPolicy(latest=0), stable=1, gone=5)
        with pytest.raises(ServingError, match=r"not found for request: Latest\(half\)"):
            made.find()
        await made.poll()
        assert made.find().version == 123
        assert made.find(version=1).version == made.find(label="stable").version == 1
        refused = [
            (
                {"version": 7},
                Code.NOT_FOUND,
                r"Servable not found for request: Specific\(half, 7\)",
            ),
            ({"label": "gone"}, Code.NOT_FOUND, r"Specific\(half, 5\)"),
            ({"label": "else"}, Code.FAILED_PRECONDITION, "Unrecognized servable version label"),
        ]
        for asked, code, message in refused:
            with pytest.raises(ServingError, match=message) as error:
                made.find(**asked)
            assert error.value.code == code
        await made.close()
        assert states(made) == {1: State.END, 123: State.END}

    asyncio.run(test())


def test_a_folder_with_zeros_in_front_is_a_version(tmp_path):
    async def test():
        export(tmp_path, 2).rename(tmp_path / "00000123")
        made = versions(tmp_path)
        await made.poll()
        assert made.find().version == 123
        await made.close()

    asyncio.run(test())


def test_a_folder_that_is_not_a_number_of_the_protocols_is_no_version(tmp_path):
    path = export(tmp_path, 2)
    # A time in microseconds, digits of another script, a link to itself, and a file.
    for name in ("20261118140800123456", "\u0663", "-1", "+2", "2.0", "0x3"):
        (tmp_path / name).mkdir()
    (tmp_path / "4").symlink_to("4")
    (tmp_path / "5").touch()
    assert artifact.versions_in(tmp_path) == {1: path}
    with pytest.raises(ArtifactError, match="version=9223372036854775808 is not from 0"):
        convoy.export(half_plus(2), tmp_path, version=2**63, batch_sizes=[1])


def loading(folder, load, policy=None):
    config = ModelConfig("half", folder, policy or VersionPolicy(latest=0))
    return ModelVersions(config, BatchOptions(), lambda *batch: None, load)


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyError, MemoryError])
def test_a_load_that_raises_anything_leaves_the_others_alone(tmp_path, error):
    async def test():
        export(tmp_path, 2)
        export(tmp_path, 3)

        def raise_in_second(path):
            if path.name == "2":
                raise error("unusual")
            return Servable(path)

        made = loading(tmp_path, lambda path: run_in_daemon(lambda: raise_in_second(path)))
        await made.poll()
        assert states(made) == {1: State.AVAILABLE, 2: State.END}
        assert error.__name__ in made.status(version=2)[0].message
        export(tmp_path, 4)
        await made.poll()
        assert states(made)[3] == State.AVAILABLE
        await made.close()

    asyncio.run(test())


def test_a_load_that_blocks_delays_neither_others_nor_the_stop(tmp_path):
    async def test():
        export(tmp_path, 2)
        export(tmp_path, 3)
        never = threading.Event()

        def block_in_first(path):
            if path.name == "1":
                never.wait()
            return Servable(path)

        made = loading(tmp_path, lambda path: run_in_daemon(lambda: block_in_first(path)))
        await made.search()
        while 2 not in made.available:
            await asyncio.sleep(0.01)
        export(tmp_path, 4)
        await made.search()
        while 3 not in made.available:
            await asyncio.sleep(0.01)
        assert states(made)[1] == State.LOADING
        await made.close()
        never.set()
        assert states(made) == {1: State.END, 2: State.END, 3: State.END}

    asyncio.run(test())


def test_a_load_has_a_time_limit(tmp_path, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(loading_module, "Servable", lambda path: never.wait())

    async def test():
        with pytest.raises(ArtifactError, match=r"was not loaded in 0\.01 seconds"):
            await Loader(0.01).load(tmp_path)

    asyncio.run(test())
    never.set()


def test_a_version_that_failed_is_tried_again_when_its_files_change(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(versions_module.time, "monotonic", lambda: now[0])

    async def test():
        source = export(tmp_path / "source", 2)
        (tmp_path / "half" / "1").mkdir(parents=True)
        attempts = []

        async def load(path):
            attempts.append(path.name)
            return await Loader().load(path)

        made = loading(tmp_path / "half", load)
        await made.poll()
        await made.poll()
        assert len(attempts) == 1  # the files are the same
        shutil.copy(source / "manifest.json", tmp_path / "half" / "1")
        await made.poll()
        assert len(attempts) == 1  # it is too early
        now[0] = 1.5
        await made.poll()
        assert len(attempts) == 2
        for file in source.iterdir():
            shutil.copy(file, tmp_path / "half" / "1")
        now[0] = 3.0
        await made.poll()
        assert len(attempts) == 2  # the time doubles
        now[0] = 3.6
        await made.poll()
        assert states(made) == {1: State.AVAILABLE}
        await made.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        artifact.UnreadableError("the disk is slow"),
        PassingError("killed"),
    ],
)
def test_a_version_is_tried_again_after_a_cause_that_may_pass(tmp_path, monkeypatch, error):
    now = [0.0]
    monkeypatch.setattr(versions_module.time, "monotonic", lambda: now[0])

    async def test():
        path = export(tmp_path, 2)
        attempts, errors = [], [error, error, None]

        async def load(path):
            attempts.append(path.name)
            if errors[0] is not None:
                raise errors.pop(0)
            return Servable(path)

        made = loading(tmp_path, load)
        for time, count in ((0.0, 1), (0.5, 1), (1.5, 2), (3.0, 2), (3.6, 3), (99.0, 3)):
            now[0] = time
            await made.poll()
            assert len(attempts) == count, time
        assert states(made) == {1: State.AVAILABLE}
        # A damaged version is not tried again, and one that is being served is not either.
        errors[0] = ArtifactError("damaged")
        (path / "manifest.json").touch()
        for time in (100.0, 200.0):
            now[0] = time
            await made.poll()
            assert len(attempts) == 4
        await made.close()

    asyncio.run(test())


def test_a_load_that_took_too_long_is_tried_again(tmp_path, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(loading_module, "Servable", lambda path: never.wait())
    with pytest.raises(ArtifactError) as error:
        asyncio.run(Loader(0.01).load(tmp_path))
    never.set()
    now = [0.0]
    monkeypatch.setattr(versions_module.time, "monotonic", lambda: now[0])

    async def test():
        export(tmp_path, 2)
        attempts = []

        async def load(path):
            attempts.append(path.name)
            now[0] += 600.0
            raise error.value

        made = loading(tmp_path, load)
        await made.poll()
        assert len(attempts) == 1
        # Otherwise, it would take most of a core's time.
        now[0] = 1199.0
        await made.poll()
        assert len(attempts) == 1
        now[0] = 1201.0
        await made.poll()
        assert len(attempts) == 2
        # The time between attempts does not grow without limit.
        for _ in range(1100):
            now[0] += 1000.0
            await made.poll()
        assert len(attempts) == 1102
        assert states(made) == {1: State.END}
        await made.close()

    asyncio.run(test())


def test_a_version_that_is_replaced_under_its_number_is_loaded_again(tmp_path):
    async def test():
        folder = tmp_path / "half"
        export(folder, 2)
        made = versions(folder)
        await made.poll()
        before = made.find()
        await made.poll()
        assert made.find() is before
        other = export(tmp_path / "other", 5)
        (folder / "1").rename(tmp_path / "removed")
        other.rename(folder / "1")
        await made.poll()
        assert (await made.find().batcher.submit(ONE, 1))["output_0"].tolist() == [6]
        assert states(made) == {1: State.AVAILABLE}
        # One that cannot be loaded leaves it in place.
        (folder / "1" / "weights.safetensors").write_bytes(b"damaged")
        await made.poll()
        assert (await made.find().batcher.submit(ONE, 1))["output_0"].tolist() == [6]
        await made.close()

    asyncio.run(test())
