import pytest
from convoy.report.chrome_trace import chrome_trace


def test_the_trace_has_what_was_recorded(recorded):
    _, _, report = recorded
    events = chrome_trace(report)["traceEvents"]
    calls = [event for event in events if event["pid"] == 2 and event["ph"] == "X"]
    assert len(calls) == len(report.parts["calls"])
    assert calls[0]["args"] == {"program": 0, "steps": 4, "samples": 32}
    first = report.parts["calls"][0]
    assert calls[0]["ts"] == pytest.approx(first[2] * 1e6)
    assert calls[0]["dur"] == pytest.approx((first[3] - first[2]) * 1e6)
    spans = [event for event in events if event["pid"] == 1 and event["ph"] == "X"]
    assert len(spans) == len(report.parts["spans"])


def test_actions_of_a_pipeline_are_in_the_trace(staged):
    _, _, report = staged
    events = chrome_trace(report)["traceEvents"]
    actions = [event for event in events if event["pid"] == 3 and event["ph"] == "X"]
    updates = report.parts["pipelines"]
    assert len(actions) == sum(len(update["measured"]["events"]) for update in updates)
    assert {event["tid"] for event in actions} == {0, 1}
