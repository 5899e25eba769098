"""Prefetched batches are those of one process, from any position."""

import numpy as np
import pytest
from convoy.data.prefetch import Prefetcher
from tests.data.fill_job import Fill

pytestmark = pytest.mark.integration


@pytest.fixture(params=[0, 2], ids=["this process", "workers"], scope="module")
def prefetcher(request):
    found = Prefetcher(Fill(), lambda position: 10 * position, workers=request.param)
    yield found
    found.close()


def test_batches_come_in_order_and_after_a_jump(prefetcher):
    for position in (0, 1, 2, 7, 8, 3, 0):
        array, result = prefetcher.take(position)
        np.testing.assert_array_equal(array, np.full((2, 3), 10 * position, np.float32))
        assert result == -10 * position


def test_no_process_starts_before_the_first_batch():
    prefetcher = Prefetcher(Fill(), lambda position: position, workers=2)
    assert prefetcher._pool is None
    prefetcher.close()
