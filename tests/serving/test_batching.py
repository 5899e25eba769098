import asyncio
import threading

import numpy as np
import pytest
from convoy.serving.batching import Batcher, BatchOptions, Streams
from convoy.serving.errors import Code, ServingError

pytestmark = pytest.mark.integration


class Doubler:
    """A model that says which batches it was given, and can be held up."""

    def __init__(self):
        self.batches = []
        self.entered = asyncio.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self._loop = asyncio.get_running_loop()

    def __call__(self, arrays):
        self.batches.append(arrays["x"].copy())
        self._loop.call_soon_threadsafe(self.entered.set)
        assert self.go_on.wait(600)
        if (arrays["x"] < 0).any():
            raise FloatingPointError("negative")
        return {"y": 2 * arrays["x"]}


def values(*numbers):
    return {"x": np.array(numbers, np.float32)}


# As on a GPU: a larger batch takes hardly longer.
SECONDS = {1: 1.0, 2: 1.1, 4: 1.2}


def batcher(model, seconds=SECONDS, **options):
    return Batcher(model, seconds, BatchOptions(**options), lambda samples, size: None)


async def held(batcher, model):
    """Have the model stuck in a request; return that request."""
    model.go_on.clear()
    first = asyncio.create_task(batcher.submit(values(1), 1))
    await model.entered.wait()
    return first


async def waiting(batcher, *requests):
    """Have requests of these numbers wait; return them."""
    tasks = [asyncio.create_task(batcher.submit(values(*x), len(x))) for x in requests]
    while batcher.waiting_samples < sum(map(len, requests)):
        await asyncio.sleep(0)
    return tasks


def test_requests_that_come_while_the_model_runs_share_a_batch():
    async def test():
        model = Doubler()
        made = batcher(model)
        first = await held(made, model)
        more = await waiting(made, [2], [3], [4])
        model.go_on.set()
        answers = [(await task)["y"].tolist() for task in (first, *more)]
        await made.close()
        assert answers == [[2], [4], [6], [8]]
        assert [batch.tolist() for batch in model.batches] == [[1], [2, 3, 4, 0]]

    asyncio.run(test())


def test_a_batch_is_not_filled_up_where_every_sample_has_its_cost():
    async def test():
        model = Doubler()
        made = batcher(model, {1: 1.0, 2: 1.7, 4: 2.9})
        first = await held(made, model)
        *more, large = await waiting(made, [2], [3], [4], [5, 6, 7])
        model.go_on.set()
        answers = [(await task)["y"].tolist() for task in (first, *more, large)]
        await made.close()
        assert answers == [[2], [4], [6], [8], [10, 12, 14]]
        assert [batch.tolist() for batch in model.batches] == [[1], [2, 3], [4, 5, 6, 7]]

    asyncio.run(test())


def test_a_batch_waits_for_others_as_long_as_it_may():
    async def test():
        model = Doubler()
        made = batcher(model, batch_timeout_micros=60_000_000)
        tasks = [asyncio.create_task(made.submit(values(x), 1)) for x in (1, 2, 3, 4)]
        await asyncio.gather(*tasks)  # it is full, so nobody waits for the timeout
        lonely = asyncio.create_task(made.submit(values(5), 1))
        while not made.waiting_samples:
            await asyncio.sleep(0)
        await made.close()  # does not wait for it either
        assert (await lonely)["y"].tolist() == [10]
        assert [batch.tolist() for batch in model.batches] == [[1, 2, 3, 4], [5]]

    asyncio.run(test())


def test_a_large_request_takes_several_calls():
    async def test():
        model = Doubler()
        made = batcher(model)
        answer = await made.submit(values(*range(9)), 9)
        await made.close()
        assert answer["y"].tolist() == [2.0 * x for x in range(9)]
        assert [len(batch) for batch in model.batches] == [4, 4, 1]

    asyncio.run(test())


def test_a_full_queue_refuses_at_once():
    async def test():
        model = Doubler()
        made = batcher(model, max_enqueued_samples=2)
        first = await held(made, model)
        waiting = [asyncio.create_task(made.submit(values(x), 1)) for x in (2, 3)]
        while made.waiting_samples < 2:
            await asyncio.sleep(0)
        with pytest.raises(ServingError, match="2 samples are waiting") as refused:
            await made.submit(values(4), 1)
        assert refused.value.code == Code.RESOURCE_EXHAUSTED
        model.go_on.set()
        assert [(await task)["y"][0] for task in (first, *waiting)] == [2, 4, 6]
        assert (await made.submit(values(4), 1))["y"].tolist() == [8]
        await made.close()

    asyncio.run(test())


def test_nobody_computes_for_a_client_that_left():
    async def test():
        model = Doubler()
        made = batcher(model)
        first = await held(made, model)
        gone, there = (asyncio.create_task(made.submit(values(x), 1)) for x in (2, 3))
        while made.waiting_samples < 2:
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        model.go_on.set()
        assert (await there)["y"].tolist() == [6]
        await first
        await made.close()
        assert [batch.tolist() for batch in model.batches] == [[1], [3]]

    asyncio.run(test())


def test_a_failure_is_told_to_those_in_the_batch_only():
    async def test():
        made = batcher(Doubler())
        with pytest.raises(ServingError, match="negative") as failed:
            await made.submit(values(-1), 1)
        assert failed.value.code == Code.INTERNAL
        assert (await made.submit(values(1), 1))["y"].tolist() == [2]
        await made.close()

    asyncio.run(test())


def test_batches_can_be_limited():
    async def test():
        model = Doubler()
        made = batcher(model, max_batch_size=3)
        await made.submit(values(1, 2, 3), 3)
        await made.close()
        assert [len(batch) for batch in model.batches] == [2, 1]

    asyncio.run(test())


# As on a CPU of two cores: each takes less than twice as long as both together.
WHOLE, LANE = {1: 1.1, 2: 1.9, 4: 3.5}, {1: 2.0, 2: 3.2}


def in_streams(whole, stream, count=2):
    streams = Streams(count, stream, LANE)
    return Batcher(whole, WHOLE, BatchOptions(), lambda samples, size: None, streams)


def test_one_request_has_the_whole_machine():
    async def test():
        whole, stream = Doubler(), Doubler()
        made = in_streams(whole, stream)
        for number in (1, 2):
            assert (await made.submit(values(number), 1))["y"].tolist() == [2 * number]
        await made.close()
        assert (len(whole.batches), len(stream.batches)) == (2, 0)

    asyncio.run(test())


def test_several_requests_are_divided_over_streams():
    async def test():
        whole, stream = Doubler(), Doubler()
        made = in_streams(whole, stream)
        first = await held(made, whole)
        more = await waiting(made, [2], [3], [4])
        # Nothing begins beside what has the whole machine.
        assert not stream.batches
        stream.go_on.clear()
        whole.go_on.set()
        while len(stream.batches) < 2:
            await asyncio.sleep(0.001)
        # Both streams are busy; this one waits for either.
        last = asyncio.create_task(made.submit(values(5), 1))
        await asyncio.sleep(0.01)
        assert len(stream.batches) == 2
        stream.go_on.set()
        answers = [(await task)["y"].tolist() for task in (first, *more, last)]
        await made.close()
        assert answers == [[2], [4], [6], [8], [10]]
        assert sorted(batch.tolist() for batch in stream.batches[:2]) == [[2, 3], [4]]
        assert len(whole.batches) + len(stream.batches) == 4

    asyncio.run(test())


def test_fewer_requests_than_streams_have_the_whole_machine():
    async def test():
        whole, stream = Doubler(), Doubler()
        made = in_streams(whole, stream, count=4)
        first = await held(made, whole)
        more = await waiting(made, [2], [3], [4])
        whole.go_on.set()
        await asyncio.gather(first, *more)
        await made.close()
        assert not stream.batches

    asyncio.run(test())


def test_a_request_that_no_stream_holds_waits_for_the_whole_machine():
    async def test():
        whole, stream = Doubler(), Doubler()
        made = in_streams(whole, stream)
        first = await held(made, whole)
        *small, large = await waiting(made, [2], [3], [4, 5, 6, 7])
        whole.go_on.set()
        answers = [(await task)["y"].tolist() for task in (first, *small, large)]
        await made.close()
        assert answers == [[2], [4], [6], [8, 10, 12, 14]]
        assert whole.batches[-1].tolist() == [4, 5, 6, 7]

    asyncio.run(test())


def test_a_model_that_is_smaller_than_a_call_has_no_streams():
    async def test():
        whole, stream = Doubler(), Doubler()
        streams = Streams(2, stream, {1: 2e-5, 2: 4e-5})
        quick = {1: 1e-5, 2: 2e-5, 4: 4e-5}
        made = Batcher(whole, quick, BatchOptions(), lambda samples, size: None, streams)
        first = await held(made, whole)
        more = await waiting(made, [2], [3])
        whole.go_on.set()
        await asyncio.gather(first, *more)
        await made.close()
        assert not stream.batches

    asyncio.run(test())
