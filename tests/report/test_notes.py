from convoy.report import notes
from convoy.report.notes import Notes


def test_rows_beyond_the_limit_only_count(monkeypatch):
    monkeypatch.setattr(notes, "TIMED_ROWS", 3)
    found = Notes()
    for number in range(5):
        found.span("input", number, number + 1)
    part, full = found.take()
    assert len(part["spans"]) == 3
    assert not full
    assert found.summary()["rows_left_out"] == 2
    assert found.summary()["host"]["input"] == {"seconds": 5.0, "count": 5}


def test_a_full_part_is_handed_out_once(monkeypatch):
    monkeypatch.setattr(notes, "PART_ROWS", 2)
    found = Notes()
    found.span("input", 0, 1)
    assert found.take() == (
        {"spans": [["input", -round(found.began, 6), round(1 - found.began, 6)]]},
        False,
    )
    found.call("train", 0, 1, 3, steps=2, samples=8)
    part, full = found.take()
    assert full
    assert set(part) == {"spans", "calls"}
    assert found.take() == ({}, False)
    assert found.summary()["programs"]["0"] == {"times": 0, "seconds": 2}


def test_metrics_are_kept_no_closer_together_than_asked(monkeypatch):
    moments = iter([0.0, 0.1, 0.3])
    found = Notes()
    monkeypatch.setattr(found, "seconds", lambda: next(moments))
    for step in range(3):
        found.metrics("train", step, {"loss": 1.0})
    part, _ = found.take()
    assert [row[1] for row in part["metrics"]] == [0, 2]
