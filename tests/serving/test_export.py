import convoy
import keras
import numpy as np
import pytest
from convoy.serving.errors import ArtifactError
from convoy.serving.servable import Servable
from tests.serving.models import half_plus


def test_versions_count_up(tmp_path):
    folder = tmp_path / "models" / "half"
    first, second = (convoy.export(half_plus(2), folder, batch_sizes=[1]) for _ in range(2))
    assert (first.name, second.name) == ("1", "2")
    assert {entry.name for entry in folder.iterdir()} == {"1", "2"}
    with pytest.raises(ArtifactError, match="2 already exists"):
        convoy.export(half_plus(2), folder, version=2, batch_sizes=[1])
    assert {entry.name for entry in folder.iterdir()} == {"1", "2"}


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
        ((keras.Sequential([keras.layers.Dense(2)]),), {}, "has no known input shape"),
        ((open_size,), {}, "Only the batch size"),
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
