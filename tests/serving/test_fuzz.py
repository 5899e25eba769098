"""Whatever is sent: an answer that is not the server's fault, and a server that goes on."""

import gc
import json
import os
import random

import grpc
import hypothesis
import pytest
from convoy.serving import tensorflow_serving_pb2 as messages
from hypothesis import strategies as st

from .soak import resident_megabytes

pytestmark = pytest.mark.integration

SETTINGS = hypothesis.settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
KEYS = [
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
keys = st.sampled_from(KEYS)
values = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)
PATHS = [
    "/v1/models/half_plus_two:predict",
    "/v1/models/pictures:predict",
    "/v1/models/pictures:classify",
    "/v1/models/half_plus_two:regress",
    "/v2/models/half_plus_two/infer",
    "/v2/models/pictures/infer",
]
paths = st.sampled_from(PATHS)


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
        request = messages.PredictRequest()
        request.model_spec.name = "half_plus_two"
        # A request that names a model, and goes on with anything.
        body = request.SerializeToString() + body
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
        error = call.future(body, timeout=600).exception()
        wrong = ("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED")
        assert error is None or error.code().name in wrong, error.details()


def send_anything(server, rng, channel):
    path = rng.choice(PATHS)
    kind = rng.randrange(3)
    if kind == 0:
        nested = [rng.choice([None, True, 1e300, "b64", []]) for _ in range(rng.randrange(50))]
        check(
            server, path, {rng.choice(KEYS): nested, rng.choice(KEYS): {rng.choice(KEYS): nested}}
        )
    elif kind == 1:
        length = str(rng.randrange(3000))
        headers = {"Inference-Header-Content-Length": length}
        check(server, path, rng.randbytes(rng.randrange(1, 5000)), **headers)
    else:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        call.future(rng.randbytes(rng.randrange(5000)), timeout=600).exception()


@pytest.mark.slow
def test_memory_does_not_grow(server):
    rng = random.Random(0)
    resident = []
    with grpc.insecure_channel(server.grpc_address) as channel:
        for _ in range(4):
            for _ in range(1000):
                send_anything(server, rng, channel)
            gc.collect()
            resident.append(resident_megabytes(os.getpid()))
    # The first requests fill caches and pools. Each body has up to 5 kB: kept, they would be 8 MB.
    assert resident[-1] - resident[0] < 4, resident


@pytest.fixture(autouse=True)
def still_serving(server):
    yield
    answer = server.json("/v1/models/half_plus_three:predict", {"instances": [1.0]})
    assert answer == (200, {"predictions": [3.5]})
