"""A pool returns what its job makes, in the order of submission."""

import numpy as np
import pytest
from convoy.data.worker_pool import WorkerPool
from tests.data.fill_job import Fill

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pool():
    found = WorkerPool(Fill(), 2)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _nothing_pending(pool):
    yield
    pool.discard()


def test_results_come_in_the_order_of_submission(pool):
    assert pool.capacity == 4
    for task in (5, 6, 7, 8):
        pool.submit(task)
    assert len(pool) == 4
    for task in (5, 6, 7, 8):
        array, result = pool.take()
        np.testing.assert_array_equal(array, np.full((2, 3), task, np.float32))
        assert result == -task
    assert len(pool) == 0


def test_an_array_that_was_taken_is_not_overwritten(pool):
    pool.submit(1)
    first, _ = pool.take()
    for task in range(2, 10):
        pool.submit(task)
        pool.take()
    assert (first == 1).all()


def test_an_error_of_a_task_is_raised_and_the_next_one_runs(pool):
    pool.submit(-3)
    pool.submit(4)
    with pytest.raises(ValueError, match="task -3 is negative"):
        pool.take()
    assert pool.take()[1] == -4


def test_pending_tasks_can_be_discarded(pool):
    pool.submit(1)
    pool.submit(-2)
    pool.discard()
    pool.submit(3)
    assert pool.take()[1] == -3
