from functools import partial

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy import cpu
from convoy.serving import artifact
from convoy.serving.errors import ArtifactError
from convoy.serving.servable import Servable
from tests import parts
from tests.serving.models import classifier


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
    # An earlier test of this process may have asked for more devices.
    monkeypatch.setattr("convoy.cpu.threads._device_count", 1)
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


def test_a_version_that_computes_something_else_is_refused(tmp_path):
    path = convoy.export(classifier(), tmp_path, batch_sizes=[1])
    found = artifact.read(path)
    found.example["=output_0"] = found.example["=output_0"] + np.float32(0.01)
    other = artifact.add_version(tmp_path, None, partial(artifact.write, found, None))
    with pytest.raises(ArtifactError, match=r"differs by .* from the exported model's"):
        Servable(other)


class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def test_a_model_that_keras_cannot_read_is_served_from_its_programs(tmp_path, caplog):
    x = keras.Input((3,), name="x")
    nested = keras.Model(x, Doubled()(x))
    path = convoy.export(keras.Model(x, nested(x)), tmp_path, batch_sizes=[2])
    served = Servable(path)
    assert served.compiled_from == "stablehlo"
    assert "Could not locate class 'Doubled'" in served.fallback
    assert served.fallback in caplog.text
    found = served.run({"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(found["output_0"], np.full((2, 3), 2, np.float32))


def test_code_in_a_keras_file_is_not_run(tmp_path):
    marker = tmp_path / "code-was-run"
    x = keras.Input((2,), name="x")
    run = eval(f"lambda value: __import__('pathlib').Path({str(marker)!r}).touch() or value")
    layer = keras.layers.Lambda(run, output_shape=(2,))
    path = convoy.export(keras.Model(x, layer(x)), tmp_path / "lambda", batch_sizes=[1])
    marker.unlink()
    assert (path / artifact.MODEL).exists()
    assert Servable(path).compiled_from == "stablehlo"
    assert not marker.exists()


def test_a_keras_file_without_a_checksum_is_not_loaded(tmp_path):
    path = convoy.export(classifier(), tmp_path, batch_sizes=[1])
    found = artifact.read(path)
    other = artifact.add_version(tmp_path, None, partial(artifact.write, found, None))
    (path / artifact.MODEL).rename(other / artifact.MODEL)
    assert Servable(other).compiled_from == "stablehlo"
