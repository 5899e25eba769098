import convoy
import keras
import numpy as np
import pytest
from convoy import ipu
from convoy.serving.servable import Servable


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,), name="x")
    return keras.Model(inputs, keras.layers.Dense(2)(inputs), name="line")


def scaled(x):
    return keras.ops.cast(x, "float32") / 255


@convoy.estimator.function
def best(outputs):
    return outputs.argmax(axis=-1).astype("int32")


def test_a_model_is_written_for_batches_of_one_size(configure, tmp_path, rng):
    configure(1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2)])
        predict = model.export_for_ipu_serving(tmp_path / "line", batch_size=4)
    found = Servable(tmp_path / "line" / "1")
    assert found.batch_sizes == (4,)
    x = rng.normal(size=(4, 3)).astype("float32")
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(predict(x)["output_0"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(predict(x=x)["output_0"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.run({"x": x})["output_0"], expected, rtol=1e-5, atol=1e-6)


def test_what_comes_before_and_after_is_written_too(model, tmp_path, rng):
    predict = ipu.serving.export_keras(
        model,
        tmp_path / "models" / "7",
        output_names="class",
        preprocessing_step=scaled,
        preprocessing_step_signature=[keras.Input((3,), 2, dtype="uint8", name="image")],
        postprocessing_step=best,
        postprocessing_step_signature=[keras.Input((2,), 2)],
    )
    x = rng.integers(0, 256, (2, 3)).astype("uint8")
    expected = np.argmax(np.asarray(model(x / np.float32(255))), -1)
    np.testing.assert_array_equal(predict(x)["class"], expected)
    served = Servable(tmp_path / "models" / "7")
    assert [tensor.name for tensor in served.signature.inputs] == ["image"]
    assert served.signature.inputs[0].dtype == "uint8"


def test_functions_are_written_alone_and_one_after_another(tmp_path):
    spec = [keras.Input((), 2, name="x")]
    single = ipu.serving.export_single_step(
        lambda x: x * 3 + 1, tmp_path / "single", predict_step_signature=spec
    )
    np.testing.assert_array_equal(single(np.float32([1, 2]))["output_0"], [4, 7])
    several = ipu.serving.export_pipeline(
        [lambda scale, x: (scale, x * scale), lambda scale, x: x + scale],
        tmp_path / "several",
        inputs=[3.0],
        input_dataset=[np.float32([1, 2])],
    )
    np.testing.assert_array_equal(several(np.float32([1, 2]))["output_0"], [6, 9])


def test_a_folder_that_is_not_empty_stays_unless_it_is_purged(model, tmp_path):
    (tmp_path / "other").touch()
    with pytest.raises(ValueError, match="is not empty"):
        ipu.serving.export_keras(model, tmp_path, batch_size=1)
    assert (tmp_path / "other").exists()
    ipu.serving.export_keras(model, tmp_path, batch_size=1, purge_export_dir=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, ValueError, "Pass batch_size"),
        ({"batch_size": 0}, ValueError, "not a number of samples"),
        ({"batch_size": 2, "preprocessing_step": scaled}, ValueError, "are not known"),
        (
            {"batch_size": 2, "preprocessing_step": scaled, "preprocessing_step_signature": "x"},
            TypeError,
            "is of type str. Pass a list",
        ),
        (
            {"batch_size": 2, "preprocessing_step": scaled, "preprocessing_step_signature": []},
            ValueError,
            "is empty",
        ),
        (
            {"batch_size": 2, "preprocessing_step": scaled, "preprocessing_step_signature": [3]},
            TypeError,
            "with a shape and a dtype",
        ),
        (
            {
                "batch_size": 2,
                "preprocessing_step": scaled,
                "preprocessing_step_signature": [keras.Input((3,), 4)],
            },
            ValueError,
            r"given as \[2, 4\]",
        ),
        (
            {
                "batch_size": 2,
                "postprocessing_step": best,
                "postprocessing_step_signature": [keras.Input((5,), 2)],
            },
            ValueError,
            "but the outputs have",
        ),
        ({"batch_size": 2, "output_names": ["a", "b"]}, ValueError, "has 1 outputs"),
    ],
)
def test_refuses_before_anything_is_written(model, tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        ipu.serving.export_keras(model, tmp_path / "line", **settings)
    assert not (tmp_path / "line").exists()


def test_refuses_a_model_whose_shape_is_not_known(tmp_path):
    with pytest.raises(ValueError, match=r"Begin it with a keras\.Input"):
        ipu.serving.export_keras(keras.Sequential([keras.layers.Dense(2)]), tmp_path, 2)
