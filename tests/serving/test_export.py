import json

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy import cpu
from convoy.serving import artifact
from convoy.serving.errors import ArtifactError
from convoy.serving.servable import Servable
from convoy.serving.signature import TensorSpec
from tests import parts
from tests.serving.models import CLASSES, classifier, half_plus


@pytest.fixture
def portable(monkeypatch):
    """As on a machine without Convoy's kernels."""
    monkeypatch.setattr(cpu, "fuses", lambda platform: False)


def test_versions_count_up(tmp_path):
    folder = tmp_path / "models" / "half"
    first, second = (convoy.export(half_plus(2), folder, batch_sizes=[1]) for _ in range(2))
    assert (first.name, second.name) == ("1", "2")
    assert {entry.name for entry in folder.iterdir()} == {"1", "2"}
    with pytest.raises(ArtifactError, match="2 already exists"):
        convoy.export(half_plus(2), folder, version=2, batch_sizes=[1])
    assert {entry.name for entry in folder.iterdir()} == {"1", "2"}


def test_a_version_says_what_it_is(pictures):
    found = artifact.read(pictures[0] / "1")
    assert found.signature.inputs == (TensorSpec("image", "uint8", (8, 8, 3)),)
    assert found.signature.outputs == (TensorSpec("output_0", "float32", (5,)),)
    assert found.class_names == CLASSES
    assert found.batch_sizes == (1, 4)
    assert found.about["versions"]["jax"] == jax.__version__


@pytest.mark.parametrize("kernels", [True, False])
def test_outputs_are_the_models(pictures, rng, kernels, request):
    if not kernels:
        request.getfixturevalue("portable")
    folder, model = pictures
    served = Servable(folder / "1")
    if cpu.fuses("cpu"):
        assert served.compiled_from == ("keras" if kernels else "stablehlo")
    images = rng.integers(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    expected = np.asarray(model(images / np.float32(255)))
    for size in (1, 4):
        found = served.run({"image": images[:size]})["output_0"]
        np.testing.assert_allclose(found, expected[:size], rtol=1e-5, atol=1e-6)


@parts.needs("the native CPU kernels")
def test_streams_compute_the_same_on_a_core_each(pictures, rng, monkeypatch):
    monkeypatch.setattr("convoy.cpu.threads.cores", lambda: 2 * jax.local_device_count("cpu"))
    served = Servable(pictures[0] / "1")
    assert served.streams == 2
    assert set(served.seconds) == {1, 4}
    assert set(served.stream_seconds) == {1}
    for programs, threads in ((served._programs, 2), (served._stream_programs, 1)):
        assert f"threads = {threads} : i64" in programs[1][0].as_text()
    image = {"image": rng.integers(0, 256, (1, 8, 8, 3)).astype(np.uint8)}
    found = served.run_in_stream(image)["output_0"]
    np.testing.assert_allclose(found, served.run(image)["output_0"], rtol=1e-5, atol=1e-6)


def test_a_machine_without_kernels_has_one_stream(pictures, portable):
    served = Servable(pictures[0] / "1")
    assert (served.streams, served.stream_seconds) == (1, {})


def test_weights_are_kept_once(pictures):
    found = artifact.read(pictures[0] / "1")
    names = [name for program in found.programs.values() for name in program.weights]
    assert len(found.weights) == len(set(names)) < len(names)
    # Two kernels with two biases in the convolutions' place, and the last layer.
    assert sum(value.size for value in found.weights.values()) == 216 + 8 + 576 + 8 + 40 + 5


class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def test_a_model_that_keras_cannot_read_is_served_from_its_programs(tmp_path, caplog):
    x = keras.Input((3,), name="x")
    model = keras.Model(x, Doubled()(x))
    path = convoy.export(model, tmp_path, batch_sizes=[2])
    served = Servable(path)
    assert served.compiled_from == "stablehlo"
    found = served.run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(found["output_0"], np.full((2, 3), 2, np.float32))


def test_several_inputs_and_outputs_keep_their_names(tmp_path, portable):
    a, b = keras.Input((2,), name="a"), keras.Input((2,), dtype="int32", name="b")
    total = keras.layers.Add()([a, keras.ops.cast(b, "float32")])
    model = keras.Model({"a": a, "b": b}, {"sum": total, "negative": -total})
    served = Servable(convoy.export(model, tmp_path, batch_sizes=[1]))
    found = served.run({"a": np.ones((1, 2), np.float32), "b": np.full((1, 2), 3, np.int32)})
    np.testing.assert_array_equal(found["sum"], [[4, 4]])
    np.testing.assert_array_equal(found["negative"], [[-4, -4]])


def test_a_model_of_a_strategy_exports_itself(tmp_path):
    model = convoy.prepare(half_plus(2))
    path = model.export_for_serving(tmp_path / "half", batch_sizes=[1])
    assert path == tmp_path / "half" / "1"
    found = Servable(path).run({"x": np.array([4], np.float32)})
    np.testing.assert_array_equal(found["output_0"], [4])


def test_what_cannot_be_exported_is_refused_before_anything_is_written(tmp_path):
    open_size = keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(2)])
    global_batch = keras.Input((2,))
    summed = keras.Model(global_batch, keras.ops.sum(global_batch, axis=0))
    refused = [
        ((keras.Sequential([keras.layers.Dense(2)]),), {}, "does not know the shape"),
        ((open_size,), {}, "Only the first size"),
        ((summed,), {}, "begin with the batch"),
        ((half_plus(2),), {"batch_sizes": [0]}, "1 or more"),
        ((half_plus(2),), {"class_names": ["a", "b"]}, "2 class_names"),
        ((half_plus(2),), {"output_names": ["a", "b"]}, "has 1 outputs"),
        (("model",), {}, "received str"),
    ]
    for arguments, settings, message in refused:
        with pytest.raises(ValueError, match=message):
            convoy.export(*arguments, tmp_path / "models", **settings)
    assert not (tmp_path / "models").exists()


def test_a_damaged_version_is_refused(tmp_path):
    path = convoy.export(half_plus(2), tmp_path, batch_sizes=[1])
    program = path / "program-1.stablehlo"
    data = bytearray(program.read_bytes())
    data[len(data) // 2] ^= 1
    program.write_bytes(data)
    with pytest.raises(ArtifactError, match="program-1\\.stablehlo is damaged"):
        Servable(path)
    (path / artifact.MANIFEST).write_text(json.dumps({"format": "else", "version": 1}))
    with pytest.raises(ArtifactError, match="has the format else, version 1"):
        Servable(path)
    with pytest.raises(ArtifactError, match="manifest\\.json is missing"):
        Servable(tmp_path)


def test_a_version_that_computes_something_else_is_refused(tmp_path):
    path = convoy.export(classifier(), tmp_path, batch_sizes=[1])
    found = artifact.read(path)
    found.example["=output_0"] = found.example["=output_0"] + np.float32(0.01)
    other = artifact.write(tmp_path, found, None, None)
    with pytest.raises(ArtifactError, match=r"differs by .* from the exported model's"):
        Servable(other)
