"""Exports in 16 bits, on a real server: Keras's answers under the policy, over REST and gRPC."""

import json
import re
from collections import Counter

import convoy
import grpc
import keras
import ml_dtypes
import numpy as np
import pytest
from convoy import precision
from convoy.serving import artifact
from convoy.serving import tensorflow_serving_pb2 as messages
from convoy.serving.accuracy import ExportedPrecision
from convoy.serving.errors import ArtifactError
from convoy.serving.servable import Servable
from convoy.serving.versions import ModelConfig
from keras import layers
from tests import parts
from tests.equivalence.side_by_side import HALF_TOLERANCE
from tests.serving.models import CLASSES
from tests.serving.running import running

pytestmark = pytest.mark.integration

POLICIES = tuple(HALF_TOLERANCE)


def network():
    """Chains of convolution, normalisation, addition and activation, plain and depthwise."""
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(image)
    x = first = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.BatchNormalization()(layers.Conv2D(16, 1, use_bias=False)(x))
    x = layers.ReLU()(layers.Add()([x, first]))
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(32, 3, strides=2, padding="same")(x))
    outputs = layers.Dense(len(CLASSES), activation="softmax", dtype="float32")(x)
    return keras.Model(image, outputs, name="half")


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(1)
    model = network()
    rng = np.random.default_rng(1)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    return model


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(2).normal(size=(20, 8, 8, 3)).astype("float32")


@pytest.fixture(scope="module")
def folders(trained, images, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for policy in (*POLICIES, "float32"):
        convoy.export(trained, root / policy, batch_sizes=[1, 4], precision=policy, samples=images)
    return root


@pytest.fixture(scope="module")
def server(folders):
    with running([ModelConfig(policy, folders / policy) for policy in POLICIES]) as started:
        yield started


def under_policy(policy, trained, images):
    with precision.find(policy).scope():
        model = network()
    model.set_weights(trained.get_weights())
    return np.asarray(model(images))


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_are_those_of_keras_under_the_policy(server, trained, images, policy):
    expected, tolerance = under_policy(policy, trained, images[:3]), HALF_TOLERANCE[policy]
    _, answer = server.json(f"/v1/models/{policy}:predict", {"instances": images[:3].tolist()})
    np.testing.assert_allclose(answer["predictions"], expected, rtol=tolerance, atol=tolerance)

    request = messages.PredictRequest()
    request.model_spec.name = policy
    tensor = request.inputs["image"]
    tensor.dtype = messages.DT_FLOAT
    for size in (3, 8, 8, 3):
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = images[:3].tobytes()
    with grpc.insecure_channel(server.grpc_address) as channel:
        predict = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            request_serializer=messages.PredictRequest.SerializeToString,
            response_deserializer=messages.PredictResponse.FromString,
        )
        output = predict(request, timeout=600).outputs["output_0"]
    assert output.dtype == messages.DT_FLOAT
    found = np.reshape(output.float_val, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
def test_programs_without_kernels_compute_the_same(folders, trained, images, policy, portable):
    served = Servable(folders / policy / "1")
    assert served.compiled_from == "stablehlo"
    found = served.run({"image": images[:4]})["output_0"]
    tolerance = HALF_TOLERANCE[policy]
    expected = under_policy(policy, trained, images[:4])
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_the_precision_is_in_metadata_status_and_manifest(server, folders, trained, images):
    _, metadata = server.json("/v2/models/bfloat16")
    assert [spec["datatype"] for spec in metadata["inputs"] + metadata["outputs"]] == ["FP32"] * 2
    assert metadata["properties"]["precision"] == "bfloat16"
    assert "on 20 samples" in metadata["properties"]["difference"]
    _, status = server.json("/status.json")
    assert [model["precisions"] for model in status["models"]] == [{"1": p} for p in POLICIES]
    manifest = json.loads((folders / "bfloat16" / "1" / "manifest.json").read_text())
    difference = manifest["precision"]["difference"]
    assert manifest["precision"]["policy"] == "bfloat16"
    assert difference["samples"] == 20
    assert 0 < difference["mean"] < difference["largest"] < 2.0**-5
    served = Servable(folders / "bfloat16" / "1", timed=False)
    batches = np.split(images, 5)
    scores = [served.run({"image": batch})["output_0"] for batch in batches]
    same = np.concatenate(scores).argmax(1) == np.asarray(trained(images)).argmax(1)
    assert difference["same_top_1"] == same.mean()


def test_weights_are_stored_in_16_bits_but_for_the_last_layer(folders):
    for policy, dtype in (("bfloat16", ml_dtypes.bfloat16), ("mixed_float16", np.float16)):
        weights = artifact.read(folders / policy / "1").weights.values()
        # Values by channel may be broadcast to the rank of the images.
        kernels = [array for array in weights if array.ndim == 4 and max(array.shape[:3]) > 1]
        assert {array.dtype for array in kernels} == {np.dtype(dtype)}
        assert len(kernels) == 4
        assert {array.dtype for array in weights if array.ndim == 2} == {np.dtype("float32")}


@parts.needs("the native CPU kernels")
def test_the_same_chains_are_fused_as_in_float32(folders):
    def calls(policy):
        served = Servable(folders / policy / "1", timed=False)
        assert served.compiled_from == "keras"
        text = served._programs[4][0].as_text()
        return Counter(re.findall(r'custom_call_target="(\w+)"', text)).total()

    # One call for each of the four convolutions.
    assert {policy: calls(policy) for policy in POLICIES} == dict.fromkeys(POLICIES, 4)
    assert calls("float32") == 4


def test_a_version_that_computes_something_else_is_refused_in_16_bits_too(folders, tmp_path):
    found = artifact.read(folders / "bfloat16" / "1")
    found.example["=output_0"] = np.roll(found.example["=output_0"], 1)
    path = artifact.add_version(tmp_path, None, lambda folder: artifact.write(found, None, folder))
    with pytest.raises(ArtifactError, match="differs by"):
        Servable(path)


def test_auto_is_the_fastest_precision_of_the_device(trained, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("convoy.devices.fastest_precision", lambda device: "mixed_bfloat16")
    path = convoy.export(trained, tmp_path, batch_sizes=[1], precision="auto")
    assert artifact.read(path).precision.policy == "mixed_bfloat16"
    assert "precision mixed_bfloat16: the difference from float32 was not measured" in caplog.text


def test_a_model_in_16_bits_is_described_without_being_asked_for(tmp_path, caplog):
    with precision.find("mixed_bfloat16").scope():
        model = network()
    path = convoy.export(model, tmp_path, batch_sizes=[1])
    found = artifact.read(path).precision
    assert found == ExportedPrecision("mixed_bfloat16", found.example_difference)
    assert found.example_difference > 0
    assert not caplog.records
    Servable(path)


def test_float16_that_overflows_is_refused_before_anything_is_written(tmp_path):
    x = keras.Input((2,))
    large = layers.Rescaling(1e4)(layers.Rescaling(1e4)(x))
    model = keras.Model(x, layers.Dense(2)(large))
    with pytest.raises(ValueError, match="overflows in this precision"):
        convoy.export(model, tmp_path / "models", batch_sizes=[1], precision="16.16")
    assert not (tmp_path / "models").exists()


@parts.needs("ONNX Runtime")
def test_onnx_is_written_in_float16_and_refused_in_bfloat16(trained, images, tmp_path):
    import onnxruntime

    path = convoy.export(trained, tmp_path, format="onnx", precision="float16", samples=images)
    session = onnxruntime.InferenceSession(path / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"image": images[:3]})
    assert found.dtype == np.float32
    tolerance = HALF_TOLERANCE["float16"]
    expected = under_policy("float16", trained, images[:3])
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    with pytest.raises(ValueError, match="no convolutions in bfloat16"):
        convoy.export(trained, tmp_path, format="onnx", precision="bfloat16")
