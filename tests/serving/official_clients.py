"""What the official clients say to a server, unchanged; run in an environment of their own.

    python official_clients.py REST_PORT GRPC_PORT

Each check prints its name; the first that fails ends the program.
"""

import sys

import grpc
import numpy as np
import requests
import tensorflow as tf
import tritonclient.http
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)


def rest_snippets(url):
    """The calls of TensorFlow Serving's documentation."""
    answer = requests.get(f"{url}/v1/models/half_plus_three").json()
    assert answer["model_version_status"][0]["state"] == "AVAILABLE"
    data = '{"instances": [1.0,2.0,5.0]}'
    answer = requests.post(f"{url}/v1/models/half_plus_three:predict", data=data).json()
    assert answer == {"predictions": [3.5, 4.0, 5.5]}
    answer = requests.post(f"{url}/v1/models/half_plus_two/versions/1:predict", data=data).json()
    assert answer == {"predictions": [2.5, 3.0, 4.5]}
    data = '{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]}'
    answer = requests.post(f"{url}/v1/models/half_plus_three:regress", data=data).json()
    assert answer == {"results": [3.5, 4.0]}
    answer = requests.post(f"{url}/v1/models/half:predict", data='{"instances": [1.0,5.0]}')
    assert (answer.status_code, answer.text) == (
        404,
        '{ "error": "Servable not found for request: Latest(half)" }',
    )
    image = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3))
    body = {"instances": image.tolist()}
    answer = requests.post(f"{url}/v1/models/pictures:predict", json=body)
    answer.raise_for_status()
    assert len(answer.json()["predictions"][0]) == 5


def grpc_predict(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "half_plus_two"
    request.model_spec.signature_name = "serving_default"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 2.0, 5.0], shape=[3]))
    answer = stub.Predict(request, 60.0)
    assert tf.make_ndarray(answer.outputs["output_0"]).tolist() == [3.5, 4.0, 5.5]
    assert answer.model_spec.version.value == 123
    request.model_spec.version_label = "stable"
    answer = stub.Predict(request, 60.0)
    assert list(answer.outputs["output_0"].float_val) == [2.5, 3.0, 4.5]

    image = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "pictures"
    request.inputs["image"].CopyFrom(tf.make_tensor_proto(image))
    answer = stub.Predict(request, 60.0)
    scores = tf.make_ndarray(answer.outputs["output_0"])
    assert scores.shape == (2, 5)
    # The file of a picture, as the client of the ResNet example sends it.
    request.inputs["image"].CopyFrom(
        tf.make_tensor_proto([tf.io.encode_png(part).numpy() for part in image])
    )
    answer = stub.Predict(request, 60.0)
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["output_0"]), scores)


def grpc_examples(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "half_plus_three"
    for value in (1.0, 2.0):
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        example = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
        request.input.example_list.examples.append(example)
    answer = stub.Regress(request, 60.0)
    assert [entry.value for entry in answer.result.regressions] == [3.5, 4.0]
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "pictures"
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[7] * 192))
    example = tf.train.Example(features=tf.train.Features(feature={"image": feature}))
    request.input.example_list.examples.append(example)
    answer = stub.Classify(request, 60.0)
    labels = [entry.label for entry in answer.result.classifications[0].classes]
    assert labels == list("abcde")


def grpc_metadata_and_status(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = get_model_metadata_pb2.GetModelMetadataRequest()
    request.model_spec.name = "pictures"
    request.metadata_field.append("signature_def")
    answer = stub.GetModelMetadata(request, 60.0)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    info = signatures.signature_def["serving_default"].inputs["image"]
    assert tf.dtypes.DType(info.dtype) == tf.uint8
    assert tf.TensorShape(info.tensor_shape).as_list() == [None, 8, 8, 3]
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "half_plus_two"
    answer = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, 60.0)
    available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
    assert [(e.version, e.state) for e in answer.model_version_status] == [
        (123, available),
        (1, available),
    ]


def grpc_errors(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "half"
    answer = stub.Predict.future(request, 60.0)
    error = answer.exception()
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert error.details() == "Servable not found for request: Latest(half)"


def triton(port):
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("pictures")
    assert client.get_model_metadata("pictures")["inputs"][0]["datatype"] == "UINT8"
    image = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    found = []
    for binary in (True, False):
        tensor = tritonclient.http.InferInput("image", list(image.shape), "UINT8")
        tensor.set_data_from_numpy(image, binary_data=binary)
        wanted = tritonclient.http.InferRequestedOutput("output_0", binary_data=binary)
        answer = client.infer("pictures", [tensor], outputs=[wanted], request_id="1")
        found.append(answer.as_numpy("output_0"))
    assert found[0].shape == (2, 5)
    np.testing.assert_allclose(*found, rtol=1e-6)
    plain = client.infer("pictures", [tensor]).as_numpy("output_0")
    np.testing.assert_allclose(plain, found[0], rtol=1e-6)
    client.close()


def main():
    rest_port, grpc_port = sys.argv[1:]
    rest_snippets(f"http://127.0.0.1:{rest_port}")
    print("rest_snippets")
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        for check in (grpc_predict, grpc_examples, grpc_metadata_and_status, grpc_errors):
            check(channel)
            print(check.__name__)
    triton(rest_port)
    print("triton")


if __name__ == "__main__":
    main()
