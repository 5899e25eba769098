"""Metrics of a server, for Prometheus and for the page."""

from collections import defaultdict, deque
from functools import partial

import numpy as np
from convoy.serving.errors import Code
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Bucket boundaries of the histograms.
SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128)
# Number of requests over which the page shows percentiles.
RECENT = 1000
PERCENTILES = (50, 95, 99)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        model = ("model",)
        self._requests = counter(
            "convoy_requests", "Requests, by status code.", (*model, "method", "code")
        )
        self._seconds = histogram(
            "convoy_request_seconds",
            "Time from the arrival of a request's body to its response.",
            (*model, "method"),
            buckets=SECONDS,
        )
        self._batches = histogram(
            "convoy_batch_samples",
            "Samples per call of the model, without padding.",
            model,
            buckets=SAMPLES,
        )
        self._padding = counter("convoy_padding_samples", "Samples of padding in batches.", model)
        self._waiting = gauge("convoy_waiting_samples", "Samples in the queue.", model)
        self._available = gauge("convoy_available_versions", "Versions that are available.", model)
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))

    def answered(self, model: str, method: str, code: Code, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(model, method, code.name).inc()
        if code == Code.OK:
            self._seconds.labels(model, method).observe(seconds)
            self._recent[model].append(seconds)

    def batch(self, model: str, samples: int, size: int) -> None:
        """Count a call of a model."""
        self._batches.labels(model).observe(samples)
        self._padding.labels(model).inc(size - samples)

    def state(self, model: str, available: int, waiting: int) -> None:
        """Set the current state of a model."""
        self._available.labels(model).set(available)
        self._waiting.labels(model).set(waiting)

    def percentiles(self, model: str) -> dict[str, float]:
        """Return the latency percentiles of a model's recent requests, in milliseconds, if any."""
        recent = list(self._recent.get(model, ()))
        if not recent:
            return {}
        values = np.percentile(recent, PERCENTILES) * 1000
        return {f"p{p}": round(float(v), 3) for p, v in zip(PERCENTILES, values, strict=True)}

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
