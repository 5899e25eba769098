"""Whatever is sent: an answer that is not the server's fault, and a server that goes on."""

import json

import grpc
import hypothesis
import pytest
from convoy.serving.protocol import message
from hypothesis import strategies as st

SETTINGS = hypothesis.settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = st.sampled_from(
    [
        "instances",
        "inputs",
        "outputs",
        "examples",
        "context",
        "signature_name",
        "x",
        "b64",
        "name",
        "shape",
        "datatype",
        "data",
        "parameters",
        "binary_data_size",
        "image",
    ]
)
values = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)
paths = st.sampled_from(
    [
        "/v1/models/half_plus_two:predict",
        "/v1/models/pictures:predict",
        "/v1/models/pictures:classify",
        "/v1/models/half_plus_two:regress",
        "/v2/models/half_plus_two/infer",
        "/v2/models/pictures/infer",
    ]
)


def check(server, path, body, **headers):
    status, _, text = server.ask(path, body, headers=headers)
    assert status in (200, 400, 404)
    assert (status == 200) == ("error" not in json.loads(text))


@SETTINGS
@hypothesis.given(path=paths, body=st.dictionaries(keys, values, max_size=4))
def test_json(server, path, body):
    check(server, path, body)


@SETTINGS
@hypothesis.given(path=paths, body=st.binary(min_size=1, max_size=200), length=st.integers(0, 300))
def test_bytes(server, path, body, length):
    check(server, path, body)
    check(server, path, body, **{"Inference-Header-Content-Length": str(length)})


@SETTINGS
@hypothesis.given(
    body=st.binary(max_size=100),
    method=st.sampled_from(
        ["Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata"]
    ),
    as_inputs=st.booleans(),
)
def test_protobufs(server, body, method, as_inputs):
    if as_inputs:
        request = message("tensorflow.serving.PredictRequest")()
        request.model_spec.name = "half_plus_two"
        # A request that names a model, and goes on with anything.
        body = request.SerializeToString() + body
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
        error = call.future(body, timeout=600).exception()
        wrong = ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED")
        assert error is None or error.code().name in wrong, error.details()


@pytest.fixture(autouse=True)
def still_serving(server):
    yield
    answer = server.json("/v1/models/half_plus_three:predict", {"instances": [1.0]})
    assert answer == (200, {"predictions": [3.5]})
