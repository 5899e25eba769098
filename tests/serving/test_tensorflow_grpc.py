import grpc
import numpy as np
import pytest
from convoy.serving import tensorflow_serving_pb2 as messages
from tests.launch.running import wait_until
from tests.serving.models import CLASSES

pytestmark = pytest.mark.integration


@pytest.fixture
def call(server):
    """Call a method with a request, or with bytes."""
    with grpc.insecure_channel(server.grpc_address) as channel:

        def call(method, request, answer, service="PredictionService"):
            made = channel.unary_unary(
                f"/tensorflow.serving.{service}/{method}",
                request_serializer=lambda x: x if isinstance(x, bytes) else x.SerializeToString(),
                response_deserializer=getattr(messages, answer).FromString,
            )
            return made(request, timeout=600)

        yield call


def ask(kind, name="half_plus_two", **spec):
    request = getattr(messages, kind)()
    request.model_spec.name = name
    if "version" in spec:
        request.model_spec.version.value = spec.pop("version")
    for key, value in spec.items():
        setattr(request.model_spec, key, value)
    return request


def with_values(request, values, shape=None, dtype=1):
    tensor = request.inputs["x"]
    tensor.dtype = dtype
    for size in [len(values)] if shape is None else shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.float_val.extend(values)
    return request


def test_predict(call):
    request = with_values(ask("PredictRequest"), [1, 2, 5])
    answer = call("Predict", request, "PredictResponse")
    assert list(answer.outputs["output_0"].float_val) == [3.5, 4, 5.5]
    assert [dim.size for dim in answer.outputs["output_0"].tensor_shape.dim] == [3]
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("half_plus_two", 123)


@pytest.mark.parametrize("spec", [{"version": 1}, {"version_label": "stable"}])
def test_a_version_is_chosen(call, spec):
    request = with_values(ask("PredictRequest", **spec), [1], shape=[3])
    request.output_filter.append("output_0")
    answer = call("Predict", request, "PredictResponse")
    # One value fills the shape.
    assert list(answer.outputs["output_0"].float_val) == [2.5] * 3
    assert answer.model_spec.version.value == 1


def test_bytes_and_examples(call, pictures):
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    expected = np.asarray(pictures[1](images / np.float32(255)))
    request = ask("PredictRequest", "pictures")
    tensor = request.inputs["image"]
    tensor.dtype, tensor.tensor_content = 4, images.tobytes()
    for size in images.shape:
        tensor.tensor_shape.dim.add(size=size)
    answer = call("Predict", request, "PredictResponse").outputs["output_0"]
    np.testing.assert_allclose(np.reshape(answer.float_val, (2, 5)), expected, rtol=1e-5)

    request = ask("ClassificationRequest", "pictures")
    for image in images:
        example = request.input.example_list.examples.add()
        example.features.feature["image"].int64_list.value.extend(image.reshape(-1).tolist())
    answer = call("Classify", request, "ClassificationResponse")
    for entry, row in zip(answer.result.classifications, expected, strict=True):
        assert [found.label for found in entry.classes] == list(CLASSES)
        np.testing.assert_allclose([found.score for found in entry.classes], row, rtol=1e-5)


def test_regress_and_several_tasks(call):
    request = ask("RegressionRequest")
    for value in (1.0, 2.0):
        example = request.input.example_list.examples.add()
        example.features.feature["x"].float_list.value.append(value)
    answer = call("Regress", request, "RegressionResponse")
    assert [entry.value for entry in answer.result.regressions] == [3.5, 4]

    several = messages.MultiInferenceRequest()
    several.input.CopyFrom(request.input)
    for _ in range(2):
        task = several.tasks.add(method_name="tensorflow/serving/regress")
        task.model_spec.CopyFrom(request.model_spec)
    answer = call("MultiInference", several, "MultiInferenceResponse")
    for result in answer.results:
        assert [entry.value for entry in result.regression_result.regressions] == [3.5, 4]


def test_tasks_do_not_add_up_to_a_request_that_is_too_large(server, call):
    request = messages.MultiInferenceRequest()
    shared = request.input.example_list_with_context
    shared.context.features.feature["x"].float_list.value.append(2.0)
    # Two tasks have more samples than one connection may have in several requests.
    for _ in range(40):
        shared.examples.add()
    shared.examples[7].features.feature["x"].float_list.value.append(1.0)
    for _ in range(3):
        task = request.tasks.add(method_name="tensorflow/serving/regress")
        task.model_spec.name = "half_plus_two"
    answer = call("MultiInference", request, "MultiInferenceResponse")
    expected = [4.0] * 7 + [3.5] + [4.0] * 32
    for result in answer.results:
        assert [entry.value for entry in result.regression_result.regressions] == expected
    assert len(answer.results) == 3
    # The response stays charged until it is read.
    wait_until(lambda: server.server.service.admission.held_bytes == 0)


def test_metadata_and_status(call):
    request = ask("GetModelMetadataRequest")
    request.metadata_field.append("signature_def")
    answer = call("GetModelMetadata", request, "GetModelMetadataResponse")
    packed = answer.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    signatures = messages.SignatureDefMap.FromString(packed.value)
    info = signatures.signature_def["serving_default"].inputs["x"]
    assert (info.dtype, [dim.size for dim in info.tensor_shape.dim]) == (1, [-1])

    answer = call(
        "GetModelStatus", ask("GetModelStatusRequest"), "GetModelStatusResponse", "ModelService"
    )
    found = [(entry.version, entry.state) for entry in answer.model_version_status]
    assert found == [(123, 30), (1, 30)]


BAD = {
    "no model": (ask("PredictRequest", "half"), "NOT_FOUND", "Latest(half)"),
    "no name": (ask("PredictRequest", ""), "INVALID_ARGUMENT", "no name"),
    "no input": (ask("PredictRequest"), "INVALID_ARGUMENT", "has the inputs none"),
    "type": (with_values(ask("PredictRequest"), [1], dtype=3), "INVALID_ARGUMENT", "int32"),
    "shape": (with_values(ask("PredictRequest"), [1, 2], [3]), "INVALID_ARGUMENT", "2 values"),
    "negative": (with_values(ask("PredictRequest"), [1], [-1]), "INVALID_ARGUMENT", "[-1]"),
    "huge": (with_values(ask("PredictRequest"), [1], [1 << 40]), "INVALID_ARGUMENT", "at most 64"),
    "label": (
        with_values(ask("PredictRequest", version_label="x"), [1]),
        "FAILED_PRECONDITION",
        "Unrecognized servable version label",
    ),
    "bytes": (b"\xff\xff", "INVALID_ARGUMENT", "not a PredictRequest"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(call, name):
    request, code, message = BAD[name]
    with pytest.raises(grpc.RpcError) as error:
        call("Predict", request, "PredictResponse")
    assert error.value.code().name == code
    assert message in error.value.details()


def test_models_cannot_be_changed_unless_it_is_allowed(call):
    request = messages.ReloadConfigRequest()
    with pytest.raises(grpc.RpcError) as error:
        call("HandleReloadConfigRequest", request, "ReloadConfigResponse", "ModelService")
    assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
