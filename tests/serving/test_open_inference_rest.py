import json

import numpy as np
import pytest

HALF = "/v2/models/half_plus_three"


def test_health(server):
    assert server.json("/v2/health/live") == (200, {"live": True})
    assert server.json("/v2/health/ready") == (200, {"ready": True})
    assert server.json(f"{HALF}/ready") == (200, {"name": "half_plus_three", "ready": True})
    status, answer = server.json("/v2")
    assert (status, answer["name"]) == (200, "convoy")


def test_metadata(server):
    status, answer = server.json("/v2/models/half_plus_two")
    assert status == 200
    assert answer["versions"] == ["1", "123"]
    assert answer["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    assert answer["outputs"] == [{"name": "output_0", "datatype": "FP32", "shape": [-1]}]


def asked(**more):
    return {"inputs": [{"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]} | more]}


def test_infer(server):
    status, answer = server.json(f"{HALF}/versions/123/infer", {"id": "7"} | asked())
    assert status == 200
    assert answer == {
        "model_name": "half_plus_three",
        "model_version": "123",
        "id": "7",
        "outputs": [{"name": "output_0", "shape": [2], "datatype": "FP32", "data": [3.5, 4.0]}],
    }


def test_infer_with_binary_tensors(server):
    entry = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    outputs = [{"name": "output_0", "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": [entry], "outputs": outputs}).encode()
    body = header + np.array([1, 2], np.float32).tobytes()
    length = {"Inference-Header-Content-Length": str(len(header))}
    status, headers, text = server.ask(f"{HALF}/infer", body, headers=length)
    assert status == 200
    end = int(headers["Inference-Header-Content-Length"])
    (output,) = json.loads(text[:end])["outputs"]
    assert output["parameters"] == {"binary_data_size": 8}
    np.testing.assert_array_equal(np.frombuffer(text[end:], np.float32), [3.5, 4])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"datatype": "INT32"}, "has datatype 'INT32'; expected FP32"),
        ({"shape": [3]}, "2 values for the shape [3]; expected 3."),
        ({"shape": "2"}, "not a list of sizes"),
        ({"shape": [2, 1]}, "has the shape [2, 1]; expected [samples]"),
        ({"data": "1"}, "needs 'data', a list"),
        ({"name": "y"}, "is not one of the model's: x"),
        ({"name": None}, "names of inputs must be strings"),
        ({"datatype": "BYTES", "data": ["AA=="]}, "1 strings for the shape [2]; expected 2"),
        ({"parameters": {"binary_data_size": 8}}, "is not within the body"),
        ({"parameters": []}, "must be an object"),
    ],
)
def test_errors(server, more, message):
    status, answer = server.json(f"{HALF}/infer", asked(**more))
    assert message in answer["error"]
    assert status == 400


def test_other_errors(server):
    status, answer = server.json("/v2/models/half/infer", asked())
    assert (status, answer["error"]) == (404, "Servable not found for request: Latest(half)")
    assert server.json(f"{HALF}/infer")[0] == 404
    length = {"Inference-Header-Content-Length": "1000"}
    assert server.json(f"{HALF}/infer", asked(), headers=length)[0] == 400
