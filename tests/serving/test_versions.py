import asyncio

import convoy
import numpy as np
import pytest
from convoy.serving.batching import BatchOptions
from convoy.serving.errors import Code, ServingError
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
