import subprocess
import sys

import convoy
import numpy as np
import pytest
from convoy import cpu
from convoy.train.flags import Options
from convoy.train.models import make_model
from convoy.train.models.catalog import MODELS
from convoy.train.serving_model import make_serving_model


def trainable(model):
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("toy_model", (32, 32, 3), 10, 242),
        ("toy_model", (28, 28, 1), 10, 170),
        ("toy_model_bn", (32, 32, 3), 10, 266),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("cifar_resnet20", (32, 32, 3), 10, 269_722),
                ("cifar_resnet32", (32, 32, 3), 10, 464_154),
                ("cifar_resnet44", (32, 32, 3), 10, 658_586),
                ("cifar_resnet56", (32, 32, 3), 10, 853_018),
                ("resnet18", (224, 224, 3), 1000, 11_693_736),
                ("resnet34", (224, 224, 3), 1000, 21_801_896),
                ("resnet50", (224, 224, 3), 1000, 25_557_032),
                ("resnet101", (224, 224, 3), 1000, 44_549_160),
                ("resnet152", (224, 224, 3), 1000, 60_192_808),
            )
        ),
    ],
)
def test_parameters(name, shape, classes, expected):
    assert trainable(make_model(name, shape, classes)) == expected


@pytest.mark.slow
def test_parameters_and_layer_names_of_a_small_residual_network():
    model = make_model("cifar_resnet8", (32, 32, 3), 10)
    assert trainable(model) == 75_290
    names = [layer.name for layer in model.layers]
    for name in (
        "conv1",
        "conv1_relu",
        "conv2_block1_layer1_conv",
        "conv2_block1_layer1_bn",
        "conv2_block1_layer1_relu",
        "conv2_block1_post_addition_relu",
        "conv3_block1_layer1_conv_ds",
        "conv3_block1_shortcut",
        "conv4_block1_layer2_conv",
        "conv4_block1_add",
        "avg_pool",
        "fc_layer",
    ):
        assert name in names
    assert not [name for name in names if "conv2_block1_shortcut" in name]


@pytest.mark.slow
def test_layer_names_of_resnet18_and_its_first_shortcut():
    names = [layer.name for layer in make_model("resnet18", (32, 32, 3), 2).layers]
    expected = ["conv1_pad", "conv1_conv", "conv1_bn", "conv1_relu", "pool1_pad", "pool1_pool"]
    assert names[1:7] == expected
    for name in ("conv2_block1_0_conv", "conv3_block2_2_bn", "conv5_block2_out", "predictions"):
        assert name in names


@pytest.mark.parametrize(
    "name",
    [
        "toy_model",
        pytest.param("cifar_resnet8", marks=pytest.mark.slow),
        pytest.param("resnet18", marks=pytest.mark.slow),
        pytest.param("resnet34", marks=pytest.mark.slow),
        pytest.param("resnet50", marks=pytest.mark.slow),
    ],
)
def test_a_black_image_belongs_to_no_class(name):
    model = make_model(name, (32, 32, 3), 2)
    probabilities = np.asarray(model(np.zeros((1, 32, 32, 3), "float32")))
    np.testing.assert_allclose(probabilities, [[0.5, 0.5]], atol=1e-6)


@pytest.mark.slow
def test_last_norms_of_bottlenecks_begin_at_zero_where_the_shortcut_has_no_weights():
    model = make_model("resnet50", (32, 32, 3), 2)
    assert not np.any(model.get_layer("conv2_block2_3_bn").gamma.numpy())
    assert np.all(model.get_layer("conv2_block1_3_bn").gamma.numpy() == 1)


@pytest.mark.slow
def test_a_model_of_keras_applications_by_name_in_any_case():
    model = make_model("MobileNetV2", (32, 32, 3), 7)
    assert model.output_shape == (None, 7)


def test_a_function_of_the_users_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_nets.py").write_text(
        "import keras\n"
        "def tiny(shape, classes):\n"
        "    x = keras.Input(shape)\n"
        "    return keras.Model(x, keras.layers.Dense(classes)(keras.layers.Flatten()(x)))\n"
        "word = 'x'\n"
        "def wrong(shape, classes):\n"
        "    return None\n"
    )
    assert make_model("my_nets:tiny", (4, 4, 1), 3).output_shape == (None, 3)
    for name, message in (
        ("my_nets:tinny", r"my_nets has no 'tinny'\. Did you mean tiny\?"),
        ("no_such_nets:tiny", r"No module named .* in this folder"),
        ("my_nets:word", "'word' is not a function"),
        ("my_nets:wrong", "returned NoneType, not a keras.Model"),
    ):
        with pytest.raises(ValueError, match=message):
            make_model(name, (4, 4, 1), 3)


def test_an_unknown_model_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"Did you mean cifar_resnet8.* Pass .*toy_model"):
        make_model("cifar_resnet9", (32, 32, 3), 10)


def test_a_model_that_is_known_twice_is_suggested_once():
    with pytest.raises(ValueError, match=r"Did you mean resnet50 or resnet50v2"):
        make_model("resnt50", (32, 32, 3), 10)


def test_images_that_are_too_small_are_refused():
    message = r"images of shape \(8, 8, 1\): .*output size.*Pass another --model or --dataset"
    with pytest.raises(ValueError, match=message):
        make_model("toy_model", (8, 8, 1), 10)


SERVE = """
import sys
from pathlib import Path

from convoy.serving.servable import Servable

for path in sys.argv[1:]:
    served = Servable(Path(path), timed=False)
    assert not served.fallback, served.fallback
    print(served.compiled_from)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    "names",
    [("cifar_resnet8",), pytest.param(tuple(MODELS), marks=pytest.mark.slow)],
    ids=["small", "all"],
)
def test_networks_are_exported_and_served_by_the_fast_programs(names, tmp_path):
    """A server imports the layers of `convoy train`, but not `convoy.train`."""
    paths = []
    for name in names:
        options = Options(model=name, dataset="cifar10", precision="32.32", seed=1)
        made = make_serving_model(options, None)
        path = convoy.export(
            made.model, tmp_path / name, batch_sizes=[1], preprocessing=made.preprocessing
        )
        paths.append(path)
    done = subprocess.run(
        [sys.executable, "-c", SERVE, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = "keras" if cpu.fuses("cpu") else "stablehlo"
    assert done.stdout.split() == [expected] * len(names)
