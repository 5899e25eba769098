import asyncio
import os
import signal

import convoy
import pytest
from convoy.serving.errors import ArtifactError
from convoy.serving.loading import Loader
from convoy.serving.trial import Trials
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
        with pytest.raises(ArtifactError, match=r"tried to load it \(SIGSEGV\)"):
            await trial
        assert not trials._idle
        await trials.close()
        # A trial that takes too long is ended with its process.
        loader = Loader(0.5, try_first=True)
        with pytest.raises(ArtifactError, match=r"not loaded in 0\.5 seconds"):
            await loader.load(good)
        assert not loader._trials._running
        await loader.close()

    asyncio.run(test())
