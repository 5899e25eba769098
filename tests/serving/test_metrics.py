from convoy.serving.errors import Code
from convoy.serving.metrics import Metrics


def test_requests_batches_and_states_are_counted():
    metrics = Metrics()
    metrics.answered("half", "predict", Code.OK, 0.002)
    metrics.answered("half", "predict", Code.INVALID_ARGUMENT, 0.5)
    metrics.batch("half", samples=3, size=4)
    metrics.state("half", available=2, waiting=7)
    text = metrics.text().decode()
    for line in (
        'convoy_requests_total{code="OK",method="predict",model="half"} 1.0',
        'convoy_requests_total{code="INVALID_ARGUMENT",method="predict",model="half"} 1.0',
        'convoy_request_seconds_count{method="predict",model="half"} 1.0',
        'convoy_batch_samples_sum{model="half"} 3.0',
        'convoy_padding_samples_total{model="half"} 1.0',
        'convoy_waiting_samples{model="half"} 7.0',
        'convoy_available_versions{model="half"} 2.0',
    ):
        assert line in text


def test_percentiles_are_those_of_successful_requests():
    metrics = Metrics()
    assert metrics.percentiles("half") == {}
    for milliseconds in range(1, 102):
        metrics.answered("half", "predict", Code.OK, milliseconds / 1000)
    metrics.answered("half", "predict", Code.INTERNAL, 99.0)
    assert metrics.percentiles("half") == {"p50": 51.0, "p95": 96.0, "p99": 100.0}
