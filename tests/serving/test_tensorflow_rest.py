"""The snippets of TensorFlow Serving's documentation, and what else its REST API promises."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

HALF = "/v1/models/half_plus_two"


def picture(color, size=(8, 8), kind="PNG"):
    data = io.BytesIO()
    Image.new("RGB", size, color).save(data, kind)
    return {"b64": base64.b64encode(data.getvalue()).decode()}


def test_status(server):
    status, headers, text = server.ask("/v1/models/half_plus_three")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(text) == {
        "model_version_status": [
            {
                "version": "123",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    _, both = server.json(HALF)
    assert [entry["version"] for entry in both["model_version_status"]] == ["123", "1"]
    for path in ("/versions/1", "/labels/stable"):
        _, one = server.json(HALF + path)
        assert [entry["version"] for entry in one["model_version_status"]] == ["1"]


def test_metadata(server):
    status, answer = server.json(f"{HALF}/versions/1/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "half_plus_two", "signature_name": "", "version": "1"}
    definition = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert definition["method_name"] == "tensorflow/serving/predict"
    shape = {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    expected = {"x": {"dtype": "DT_FLOAT", "tensor_shape": shape, "name": "x:0"}}
    assert definition["inputs"] == expected


def test_predict_in_rows_as_documented(server):
    status, _, text = server.ask(
        "/v1/models/half_plus_three:predict", b'{"instances": [1.0,2.0,5.0]}'
    )
    assert status == 200
    assert text.decode() == '{\n    "predictions": [3.5, 4.0, 5.5]\n}'


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"instances": [1, 2.5]}, {"predictions": [2.5, 3.25]}),
        ({"instances": [{"x": 1.0}, {"x": 2.0}]}, {"predictions": [2.5, 3.0]}),
        ({"inputs": [1.0, 2.0]}, {"outputs": [2.5, 3.0]}),
        ({"inputs": {"x": [1.0]}, "signature_name": "serving_default"}, {"outputs": [2.5]}),
        ({"instances": [0.2] * 9}, {"predictions": [2.1] * 9}),
    ],
)
def test_predict(server, body, answer):
    assert server.json(f"{HALF}/versions/1:predict", body) == (200, answer)


def test_numbers_that_json_does_not_have(server):
    body = b'{"instances": [NaN, Infinity, -Infinity]}'
    _, _, text = server.ask(f"{HALF}/labels/stable:predict", body)
    assert b"[NaN, Infinity, -Infinity]" in text


def test_regress_as_documented(server):
    body = {
        "signature_name": "tensorflow/serving/regress",
        "examples": [{"x": 1.0}, {"x": [2.0]}],
    }
    answer = server.json("/v1/models/half_plus_three:regress", body)
    assert answer == (200, {"results": [3.5, 4.0]})


def test_classify_and_pictures(server, pictures):
    red = picture("red")
    body = {"examples": [{"image": red}, {"image": [0] * 192}]}
    status, answer = server.json("/v1/models/pictures:classify", body)
    assert status == 200
    pixels = np.zeros((2, 8, 8, 3), np.float32)
    pixels[0, ..., 0] = 1
    expected = np.asarray(pictures[1](pixels))
    for found, row in zip(answer["results"], expected, strict=True):
        assert [label for label, _ in found] == list("abcde")
        np.testing.assert_allclose([score for _, score in found], row, rtol=1e-5)
    for body in ({"instances": [red]}, {"instances": [{"image": red}]}):
        _, answer = server.json("/v1/models/pictures:predict", body)
        np.testing.assert_allclose(answer["predictions"], expected[:1], rtol=1e-5)


def test_a_context_belongs_to_every_example(server):
    body = {"context": {"x": 1.0}, "examples": [{}, {"x": 2.0}, {}]}
    answer = server.json("/v1/models/half_plus_three:regress", body)
    assert answer == (200, {"results": [3.5, 4.0, 3.5]})
    red, blue = picture("red"), picture("blue", (40, 20))
    path = "/v1/models/pictures:classify"
    for examples in ([{}] * 60, [{}, {"image": blue}, {}, {"image": [0] * 192}]):
        status, found = server.json(path, {"context": {"image": red}, "examples": examples})
        assert status == 200
        each = [{"image": red} | example for example in examples]
        _, expected = server.json(path, {"examples": each})
        for row, wanted in zip(found["results"], expected["results"], strict=True):
            assert [label for label, _ in row] == [label for label, _ in wanted]
            scores = [[score for _, score in scores] for scores in (row, wanted)]
            np.testing.assert_allclose(*scores, rtol=1e-5)


def test_a_picture_of_another_size_is_fitted(server):
    small = server.json("/v1/models/pictures:predict", {"instances": [picture("blue")]})
    large = picture("blue", (40, 20), "JPEG")
    status, answer = server.json("/v1/models/pictures:predict", {"instances": [large]})
    assert status == 200
    np.testing.assert_allclose(answer["predictions"], small[1]["predictions"], atol=0.02)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (
            "/v1/models/half:predict",
            {"instances": [1.0]},
            404,
            "Servable not found for request: Latest(half)",
        ),
        (
            f"{HALF}/versions/7:predict",
            {"instances": [1.0]},
            404,
            "Servable not found for request: Specific(half_plus_two, 7)",
        ),
        (
            f"{HALF}/labels/none:predict",
            {"instances": [1.0]},
            400,
            "Unrecognized servable version label: none",
        ),
        (f"{HALF}/labels/a-b:predict", {"instances": [1.0]}, 400, "Label 'a-b'"),
        (f"{HALF}/versions/99999999999999999999:predict", {}, 400, "Failed to convert version"),
        (f"{HALF}:predict", b"", 400, "JSON Parse error: The document is empty"),
        (f"{HALF}:predict", b"{", 400, "JSON Parse error: "),
        (f"{HALF}:predict", b"[1]", 400, "Is not object"),
        (f"{HALF}:predict", b"\xff\xfe", 400, "JSON Parse error: "),
        (f"{HALF}:predict", b"[" * 5_000, 400, "JSON Parse error: "),
        (f"{HALF}:predict", b"[" * 100_000, 413, "100001 values and lists"),
        (f"{HALF}:predict", b'{"instances": %s}' % (b"[" * 500 + b"]" * 500), 400, "has the shape"),
        (f"{HALF}:predict", {"instances": [1.0] * 65}, 413, "65 samples; at most 64"),
        (f"{HALF}:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        (f"{HALF}:predict", {"instances": [], "inputs": []}, 400, "only one of"),
        (f"{HALF}:predict", {"instances": []}, 400, "No values in 'instances' array"),
        (f"{HALF}:predict", {"instances": 1}, 400, "to be an list/array"),
        (
            f"{HALF}:predict",
            {"instances": ["a"]},
            400,
            "Type: String is not of expected type: float32",
        ),
        (f"{HALF}:predict", {"instances": [None]}, 400, "Type: Null"),
        (f"{HALF}:predict", {"instances": [True]}, 400, "of type bool; expected float32"),
        (f"{HALF}:predict", {"instances": [[1], [1, 2]]}, 400, "same size at every level"),
        (f"{HALF}:predict", {"instances": [1, [1]]}, 400, "same size at every level"),
        (f"{HALF}:predict", {"instances": [[1.0, 2.0]]}, 400, "shape [1, 2]; expected [samples]"),
        (f"{HALF}:predict", {"instances": [{"y": 1}]}, 400, "keys must be equal to: x"),
        (
            f"{HALF}:predict",
            {"instances": [{"x": 1}, 2]},
            400,
            "Expecting object but got list at item 1",
        ),
        (f"{HALF}:predict", {"instances": [1e300]}, 400, "without loss of precision"),
        (f"{HALF}:predict", {"instances": [10**400]}, 400, "cannot hold"),
        (f"{HALF}:predict", {"inputs": {"y": [1]}}, 400, "Missing named input: x"),
        (f"{HALF}:predict", {"instances": [{"b64": "AA=="}]}, 400, "not bytes"),
        (
            f"{HALF}:predict",
            {"instances": [1], "signature_name": "x"},
            400,
            'Serving signature name: "x" not found in signature def',
        ),
        (f"{HALF}:predict", {"instances": [1], "signature_name": 1}, 400, "must be a string"),
        (f"{HALF}:classify", {}, 400, "key 'examples' is expected and was not found"),
        (f"{HALF}:classify", {"examples": [{"x": 1.0}]}, 400, "classification signature"),
        (f"{HALF}:regress", {"examples": [{}]}, 400, "Missing feature: x"),
        (f"{HALF}:regress", {"examples": [{"x": [1, 2]}]}, 400, "has 2 values; expected 1"),
        (
            f"{HALF}:regress",
            {"context": {"x": {"b64": "?"}}, "examples": [{}] * 64},
            400,
            "takes float32 of shape [], not bytes",
        ),
        (
            "/v1/models/pictures:classify",
            {"context": {"image": {"y": 1}}, "examples": [{}]},
            400,
            "not formatted correctly for base64 data",
        ),
        (f"{HALF}:regress", {"context": {"x": 1}, "examples": [{}] * 65}, 413, "65 samples"),
        (f"{HALF}:regress", {"context": 1, "examples": [{}]}, 400, "must be JSON object"),
        (
            "/v1/models/pictures:predict",
            {"instances": [{"b64": "?"}]},
            400,
            "Unable to base64 decode",
        ),
        (
            "/v1/models/pictures:predict",
            {"instances": [{"b64": "AAAA"}]},
            400,
            "not an image that can be read",
        ),
        (
            "/v1/models/pictures:predict",
            {"instances": [[[[1.5, 0, 0]] * 8] * 8]},
            400,
            "of type float64; expected uint8",
        ),
        (
            "/v1/models/pictures:predict",
            {"instances": [[[[256, 0, 0]] * 8] * 8]},
            400,
            "uint8 has 0 to 255",
        ),
        (
            "/v1/models/pictures:regress",
            {"examples": [{"image": [0] * 192}]},
            400,
            "regression signature",
        ),
        (f"{HALF}:explain", {}, 400, f"Malformed request: POST {HALF}:explain"),
        ("/v1/else", {}, 400, "Malformed request: POST /v1/else"),
        ("/v3", {}, 404, "Malformed request: POST /v3"),
    ],
)
def test_errors(server, path, body, status, message):
    found, headers, text = server.ask(path, body)
    assert message in json.loads(text)["error"]
    assert (found, headers.get_content_type()) == (status, "application/json")
    assert text.startswith(b'{ "error": ')


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/models/half", "Could not find any versions of model half"),
        (f"{HALF}/versions/7", "Could not find version 7 of model half_plus_two"),
        ("/v1/models/half/metadata", "Servable not found for request: Latest(half)"),
    ],
)
def test_status_of_what_is_not_there(server, path, message):
    assert server.json(path) == (404, {"error": message})
    assert server.json("/v1/models") == (400, {"error": "Missing model name in request."})
