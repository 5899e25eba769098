from convoy.report import event_log
from convoy.report.event_log import EventLog


def test_rows_beyond_the_limit_only_count(monkeypatch):
    monkeypatch.setattr(event_log, "MAX_TIMED_ROWS", 3)
    log = EventLog()
    for number in range(5):
        log.span("input", number, number + 1)
    part, full = log.take()
    assert len(part["spans"]) == 3
    assert not full
    assert log.summary()["rows_left_out"] == 2
    assert log.summary()["host"]["input"] == {"seconds": 5.0, "count": 5}


def test_a_full_part_is_handed_out_once(monkeypatch):
    monkeypatch.setattr(event_log, "PART_ROWS", 2)
    log = EventLog()
    log.span("input", 0, 1)
    assert log.take() == (
        {"spans": [["input", -round(log.began, 6), round(1 - log.began, 6)]]},
        False,
    )
    log.call("train", 0, 1, 3, steps=2, samples=8)
    part, full = log.take()
    assert full
    assert set(part) == {"spans", "calls"}
    assert log.take() == ({}, False)
    assert log.summary()["programs"]["0"] == {"times": 0, "seconds": 2}


def test_metrics_are_kept_no_closer_together_than_asked(monkeypatch):
    log = EventLog()
    for step, moment in enumerate([0.0, 0.1, 0.3]):
        monkeypatch.setattr(log, "seconds", lambda moment=moment: moment)
        log.metrics("train", step, {"loss": 1.0})
    part, _ = log.take()
    assert [row[1] for row in part["metrics"]] == [0, 2]
