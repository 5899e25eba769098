import asyncio

import pytest
from convoy.serving.batching import BatchOptions
from convoy.serving.errors import Code, ServingError
from convoy.serving.service import Service, Target
from convoy.serving.versions import ModelConfig


def test_a_path_names_a_model_and_perhaps_a_version_or_a_label():
    assert Target.from_path({"model": "a"}) == Target("a")
    assert Target.from_path({"model": "a", "version": "3"}) == Target("a", 3)
    assert Target.from_path({"model": "a", "label": "stable"}) == Target("a", None, "stable")
    with pytest.raises(ServingError, match="Failed to convert version"):
        Target.from_path({"model": "a", "version": str(2**63)})


@pytest.mark.parametrize(
    ("seconds", "code"), [(0.01, Code.DEADLINE_EXCEEDED), (600.0, Code.CANCELLED)]
)
def test_a_request_that_ends_early_is_counted_by_its_reason(half_plus_two, seconds, code):
    async def main():
        service = Service([ModelConfig("half", half_plus_two)], BatchOptions(), seconds)
        await service.poll()
        entered = asyncio.Event()

        async def request():
            async with service.deadline():
                with service.using(Target("half"), "predict"):
                    entered.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(request())
        await entered.wait()
        if code == Code.CANCELLED:
            task.cancel()
        with pytest.raises((ServingError, asyncio.CancelledError)) as error:
            await task
        await service.close()
        return error.value, service.metrics_text().decode()

    error, text = asyncio.run(main())
    assert f'convoy_requests_total{{code="{code.name}",method="predict",model="half"}} 1.0' in text
    if code == Code.DEADLINE_EXCEEDED:
        assert error.code == code
        assert "longer than 0.01 seconds" in error.message


def test_ready_means_that_every_model_has_a_version(half_plus_two, tmp_path):
    async def main():
        configs = [ModelConfig("half", half_plus_two), ModelConfig("none", tmp_path)]
        service = Service(configs, BatchOptions())
        await service.poll()
        before = service.is_ready
        await service.configure(configs[:1])
        after = service.is_ready
        await service.close()
        return before, after

    assert asyncio.run(main()) == (False, True)
