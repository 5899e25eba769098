"""Functions in daemon threads, and the time limit of a load."""

import asyncio
import threading

import pytest
from convoy.serving.errors import ArtifactError
from convoy.serving.loading import Loader, run_in_daemon


def test_the_result_and_the_errors_of_a_function_reach_the_caller():
    async def run(function):
        return await run_in_daemon(function)

    def fail(error):
        raise error

    assert asyncio.run(run(threading.current_thread)).daemon
    with pytest.raises(KeyError, match="name"):
        asyncio.run(run(lambda: fail(KeyError("name"))))
    for error in (StopIteration("over"), SystemExit(3)):
        with pytest.raises(RuntimeError):
            asyncio.run(run(lambda error=error: fail(error)))


def test_a_caller_that_is_cancelled_does_not_wait_for_the_thread():
    ended = threading.Event()

    async def run():
        task = asyncio.create_task(run_in_daemon(ended.wait))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    ended.set()


def test_a_load_that_takes_too_long_is_an_error(tmp_path, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr("convoy.serving.loading.Servable", lambda _: ended.wait())
    with pytest.raises(ArtifactError, match="was not loaded in 0 seconds"):
        asyncio.run(Loader(seconds=0.0).load(tmp_path))
    ended.set()
