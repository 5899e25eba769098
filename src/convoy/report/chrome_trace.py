"""Export of a report as a Chrome trace, for Perfetto and chrome://tracing."""

from convoy.report.files import Report
from convoy.types import Json

HOST, DEVICES, PIPELINE = 1, 2, 3
_KINDS = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weights"}


def chrome_trace(report: Report) -> Json:
    """Return the trace: host spans, device calls, metrics, and weight updates of pipelines."""
    events: list[Json] = [
        _named("process_name", HOST, 0, "host"),
        _named("process_name", DEVICES, 0, "devices"),
        _named("thread_name", HOST, 1, "Python"),
        _named("thread_name", DEVICES, 1, "device calls"),
    ]
    events += [_event(kind, HOST, 1, begin, end) for kind, begin, end in report.parts["spans"]]
    for mode, program, begin, end, steps, samples in report.parts["calls"]:
        about = {"program": program, "steps": steps, "samples": samples}
        events.append(_event(mode, DEVICES, 1, begin, end, about))
    for mode, step, time, values in report.parts["metrics"]:
        for name, value in values.items():
            if isinstance(value, (int, float)):
                counter = {"name": f"{mode} {name}", "ph": "C", "pid": HOST, "ts": time * 1e6}
                events.append(counter | {"args": {name: value, "step": step}})
    events += _pipelines(report)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _pipelines(report: Report) -> list[Json]:
    updates = report.parts["pipelines"]
    if not updates:
        return []
    devices = max(update["measured"]["devices"] for update in updates)
    events = [_named("process_name", PIPELINE, 0, "pipeline, recorded weight updates")]
    events += [_named("thread_name", PIPELINE, d, f"device {d}") for d in range(devices)]
    for update in updates:
        for device, action, begin, end in update["measured"]["events"]:
            stage, kind, micro_batch = parse_action(action)
            about = {"stage": stage, "micro_batch": micro_batch}
            start, stop = update["at"] + begin, update["at"] + end
            name = f"{_KINDS[kind]} {stage}.{micro_batch}"
            events.append(_event(name, PIPELINE, device, start, stop, about))
    return events


def parse_action(text: str) -> tuple[int, str, int]:
    """Parse an action: `2F0` is stage 2, forward, micro-batch 0."""
    kind = next(letter for letter in text if letter in _KINDS)
    stage, _, micro_batch = text.partition(kind)
    return int(stage), kind, int(micro_batch)


def _event(
    name: str, process: int, thread: int, begin: float, end: float, about: Json | None = None
) -> Json:
    event = {"name": name, "ph": "X", "pid": process, "tid": thread}
    return event | {"ts": begin * 1e6, "dur": (end - begin) * 1e6, "args": about or {}}


def _named(kind: str, process: int, thread: int, name: str) -> Json:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
