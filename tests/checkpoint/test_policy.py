from types import SimpleNamespace

import pytest
from convoy.checkpoint import policy
from convoy.checkpoint.folder import Position
from convoy.checkpoint.policy import Best, Interval, kept


def at(total, step):
    return SimpleNamespace(total=total, step=step)


def test_an_interval_of_steps_is_counted_from_the_runs_beginning():
    interval = Interval(4)
    assert [interval.due(at(total, 1)) for total in (3, 4, 5)] == [False, True, True]
    interval.begin(6)
    assert [interval.due(at(total, 1)) for total in (7, 8)] == [False, True]


def test_an_interval_of_epochs_ends_between_them():
    interval = Interval("epoch")
    assert interval.due(at(8, 0))
    assert not interval.due(at(9, 1))


@pytest.mark.parametrize(("every", "seconds"), [("30s", 30), ("1.5m", 90), ("2h", 7200)])
def test_an_interval_of_time(monkeypatch, every, seconds):
    now = 100.0
    monkeypatch.setattr(policy.time, "monotonic", lambda: now)
    interval = Interval(every)
    now = 100.0 + seconds - 1
    assert not interval.due(at(1, 1))
    now += 1
    assert interval.due(at(1, 1))


@pytest.mark.parametrize(
    ("best", "score"),
    [("val_loss", -2.0), ("val_accuracy", 2.0), ("max:val_loss", 2.0), ("min:other", -2.0)],
)
def test_the_best_value_is_the_largest_score(best, score):
    parsed = Best.parse(best)
    assert parsed.score({parsed.metric: 2.0}) == score
    assert parsed.score({parsed.metric: float("nan")}) == float("-inf")


def test_the_newest_and_the_best_are_kept():
    positions = [Position(epoch, 0) for epoch in range(5)]
    assert kept(positions, 2, None) == positions[3:]
    assert kept(positions, 2, positions[1]) == [*positions[3:], positions[1]]
