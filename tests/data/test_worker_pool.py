"""A pool returns what its job makes in order; prefetched batches are those of one process."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from convoy.data import worker_pool
from convoy.data.worker_pool import Prefetcher, WorkerPool
from tests.data.fill_job import Fill
from tests.launch.running import is_alive, state_of, wait_until

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


def children_of(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.fixture
def started():
    """A pool of two workers, and their process ids."""
    pool = WorkerPool(Fill(), 2)
    for task in (1, 2):
        pool.submit(task)
    assert [pool.take()[1] for _ in range(2)] == [-1, -2]
    workers = children_of(pool._process.pid)
    assert len(workers) == 2
    yield pool, workers
    pool.close()
    assert not any(map(is_alive, [pool._process.pid, *workers]))


@pytest.mark.parametrize("pending", [False, True])
def test_a_worker_that_is_killed_is_one_line_and_ends_the_others(started, pending):
    pool, workers = started
    # A worker that is not stopped may have answered all its tasks before it is killed.
    os.kill(workers[1], signal.SIGSTOP)
    wait_until(lambda: state_of(workers[1]) == "T")
    if pending:
        for task in range(4):
            pool.submit(task)
    os.kill(workers[1], signal.SIGKILL)
    wait_until(lambda: not is_alive(workers[1]))
    if not pending:
        for task in range(4):
            pool.submit(task)
    with pytest.raises(RuntimeError, match="exited unexpectedly") as raised:
        pool.discard()
    assert "\n" not in str(raised.value)


def test_workers_go_on_if_the_process_that_forked_them_is_killed(started):
    pool, workers = started
    pool._process.kill()
    pool._process.wait()
    for task in range(4):
        pool.submit(task)
    assert [pool.take()[1] for _ in range(4)] == [0, -1, -2, -3]
    pool.close()
    wait_until(lambda: not any(map(is_alive, workers)))


def test_no_room_for_batches_is_one_line(monkeypatch, small_disk):
    monkeypatch.setattr(worker_pool, "_SHARED", small_disk)
    message = r"4 batches .* need 4 MiB in .*: No space left"
    with pytest.raises(RuntimeError, match=message) as raised:
        WorkerPool(Fill((1 << 18,)), 2)
    assert "\n" not in str(raised.value)


def test_ctrl_c_in_a_terminal_does_not_reach_a_pool_that_starts():
    pool = WorkerPool(Fill(), 1)
    try:
        status = Path(f"/proc/{pool._process.pid}/status").read_text()
        (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
        assert int(mask, 16) & 1 << signal.SIGINT - 1
    finally:
        pool.close()
