import asyncio
import hashlib
import io
import json
import os
import signal
import zipfile
from pathlib import Path

import convoy
import h5py
import keras
import pytest
from convoy.serving import artifact
from convoy.serving import trial as trial_module
from convoy.serving.errors import ArtifactError
from convoy.serving.loading import Loader
from convoy.serving.trial import PassingError, Trials
from tests import parts
from tests.serving.models import half_plus

pytestmark = pytest.mark.integration


def test_a_version_that_ends_or_holds_its_trial_is_refused(tmp_path):
    good = convoy.export(half_plus(2), tmp_path / "half", batch_sizes=[1])
    (tmp_path / "bad").mkdir()

    async def test():
        trials = Trials()
        await trials.run(good)
        (process,) = trials._idle
        with pytest.raises(ArtifactError, match=r"manifest\.json is missing"):
            await trials.run(tmp_path / "bad")
        assert trials._idle == [process]  # it goes on with the next version
        # As if the compiler crashed: the process is gone before its answer.
        os.kill(process.pid, signal.SIGSTOP)
        trial = asyncio.create_task(trials.run(good))
        while not trials._running:
            await asyncio.sleep(0.01)
        os.kill(process.pid, signal.SIGSEGV)
        os.kill(process.pid, signal.SIGCONT)
        with pytest.raises(ArtifactError, match=r"tried to load it \(SIGSEGV\)") as error:
            await trial
        assert not isinstance(error.value, PassingError)
        assert not trials._idle
        await trials.close()
        # A trial that takes too long is ended with its process.
        loader = Loader(0.5, try_first=True)
        with pytest.raises(ArtifactError, match=r"not loaded in 0\.5 seconds"):
            await loader.load(good)
        assert not loader._trials._running
        await loader.close()

    asyncio.run(test())


def rewritten(path, change):
    """Change a manifest as its author can: with the right checksum."""
    manifest = json.loads((path / artifact.MANIFEST).read_bytes())
    del manifest[artifact.CHECKSUM]
    change(manifest)
    manifest[artifact.CHECKSUM] = artifact._manifest_checksum(manifest)
    (path / artifact.MANIFEST).write_text(json.dumps(manifest))


def with_sparse_weights(folder):
    """Write a version whose weights claim gigabytes, and take no space on the disk."""
    path = convoy.export(half_plus(2), folder, batch_sizes=[1])
    size = 8 << 30
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"zeros": entry}).encode()
    start = len(header).to_bytes(8, "little") + header
    with (path / artifact.WEIGHTS).open("wb") as file:
        file.write(start)
        file.truncate(len(start) + size)
    checksums = {"": hashlib.sha256(start).hexdigest(), "zeros": ""}
    rewritten(path, lambda manifest: manifest["arrays"].update({artifact.WEIGHTS: checksums}))
    return path


def with_bomb_in_keras_file(folder):
    """Write a version whose Keras file has an array of gigabytes that takes no space.

    It is small enough for Keras's own check. Keras continues after an allocation that fails, and a
    model that it cannot load is replaced by the portable programs.
    """
    x = keras.Input((4,), name="x")
    path = convoy.export(keras.Model(x, keras.layers.Dense(2)(x)), folder, batch_sizes=[1])
    model = path / artifact.MODEL
    with zipfile.ZipFile(model) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    weights = io.BytesIO(files["model.weights.h5"])
    with h5py.File(weights, "r+") as file:
        names = []
        file.visit(lambda name: names.append(name) if name.endswith("vars/0") else None)
        del file[names[0]]
        file.create_dataset(names[0], (15, 1 << 26), "float32", chunks=(1, 1 << 26))
    files["model.weights.h5"] = weights.getvalue()
    with zipfile.ZipFile(model, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    checksum = hashlib.sha256(model.read_bytes()).hexdigest()
    rewritten(path, lambda manifest: manifest["files"].update({artifact.MODEL: checksum}))
    return path


@pytest.mark.parametrize(
    "write",
    [
        with_sparse_weights,
        pytest.param(with_bomb_in_keras_file, marks=parts.needs("the native CPU kernels")),
    ],
)
def test_a_version_that_takes_too_much_memory_is_refused(tmp_path, write):
    path = write(tmp_path / "bomb")
    good = convoy.export(half_plus(2), tmp_path / "good", batch_sizes=[1])

    async def test():
        trials = Trials(max_memory=1 << 30)
        await trials.run(good)
        with pytest.raises(ArtifactError, match=r"needs more than 1024 MB of memory") as error:
            await trials.run(path)
        assert not isinstance(error.value, PassingError)
        assert not trials._idle
        assert not trials._running
        await trials.close()

    asyncio.run(test())


def test_the_system_ends_a_trial_before_the_server(tmp_path):
    good = convoy.export(half_plus(2), tmp_path / "half", batch_sizes=[1])

    async def test():
        trials = Trials()
        await trials.run(good)
        (process,) = trials._idle
        folder = Path(f"/proc/{process.pid}")
        assert folder.joinpath("oom_score_adj").read_text() == "1000\n"
        # It does not keep memory that its versions have freed.
        assert b"CONVOY_KEEP_MEMORY=0" in folder.joinpath("environ").read_bytes().split(b"\0")
        # As the system does when memory runs out.
        os.kill(process.pid, signal.SIGSTOP)
        trial = asyncio.create_task(trials.run(good))
        while not trials._running:
            await asyncio.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(PassingError, match=r"\(SIGKILL\).*free memory"):
            await trial
        await trials.close()

    asyncio.run(test())


class FakeProcess:
    def __init__(self, memory):
        self.memory, self.killed = memory, False

    def kill(self):
        self.killed, self.memory = True, 0


def test_of_several_trials_the_largest_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(trial_module, "memory_of", lambda process: process.memory)
    monkeypatch.setattr(trial_module, "WATCH_SECONDS", 0.001)

    async def test():
        trials = Trials(max_memory=100)
        small, large = FakeProcess(20), FakeProcess(60)
        trials._running |= {small, large}
        watches = [asyncio.create_task(trials._watch(p, tmp_path)) for p in (small, large)]
        await asyncio.sleep(0.02)
        assert not large.killed
        small.memory = 50  # together they take too much, and the other is larger
        assert isinstance(await watches[1], PassingError)
        assert large.killed
        small.memory = 101
        assert not isinstance(await watches[0], PassingError)
        assert small.killed

    asyncio.run(test())


def test_a_problem_of_any_length_is_told(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    # More than fits into a line that asyncio reads, and of characters that JSON escapes.
    rewritten(path, lambda manifest: manifest.update(format=chr(0x1F600) * 100_000))

    async def test():
        trials = Trials()
        async with asyncio.timeout(120):
            with pytest.raises(ArtifactError, match="has the format"):
                await trials.run(path)
        await trials.close()

    asyncio.run(test())


def test_a_version_that_cannot_be_read_now_may_be_readable_later(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    (path / artifact.WEIGHTS).unlink()
    # The system refuses to follow so many links, as it refuses to open too many files.
    (path / artifact.WEIGHTS).symlink_to(artifact.WEIGHTS)

    async def test():
        trials = Trials()
        with pytest.raises(PassingError, match="Too many levels of symbolic links"):
            await trials.run(path)
        await trials.close()

    asyncio.run(test())


def test_ctrl_c_in_a_terminal_does_not_reach_a_trial_that_starts(tmp_path):
    good = convoy.export(half_plus(2), tmp_path / "half", batch_sizes=[1])

    async def test():
        trials = Trials()
        trial = asyncio.create_task(trials.run(good))
        while not trials._running:
            await asyncio.sleep(0.01)
        (process,) = trials._running
        # A terminal sends the signal to the group of the server.
        assert os.getpgid(process.pid) != os.getpgid(0)
        await trial
        await trials.close()

    asyncio.run(test())
