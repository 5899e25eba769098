import keras
import pytest
from convoy.data import DATASETS
from convoy.layers import UpdateBatchNormalization
from convoy.train.network import make_network, recommended_splits
from convoy.train.options import Options


def network(**options):
    return make_network(Options(**options), DATASETS["mnist"], 1)


def test_by_default_the_networks_norms_are_per_update():
    norm = network(model="toy_model_bn").get_layer("bn_0")
    assert type(norm) is UpdateBatchNormalization
    assert norm.momentum == 0.97
    assert norm.epsilon == pytest.approx(1.001e-5)


def test_batch_norm_is_left_alone():
    model = network(model="toy_model_bn", norm_layer={"name": "batch_norm"})
    assert type(model.get_layer("bn_0")) is keras.layers.BatchNormalization
    assert model.get_layer("bn_0").momentum == 0.99


@pytest.mark.parametrize(
    ("key", "value", "groups"), [("num_groups", 2, 2), ("channels_per_group", 4, 1)]
)
def test_group_norm_takes_the_place_and_another_name(key, value, groups):
    model = network(model="toy_model_bn", norm_layer={"name": "group_norm", key: value})
    norm = model.get_layer("gn_0")
    assert (type(norm), norm.groups) == (keras.layers.GroupNormalization, groups)
    assert model.output_shape == (None, 10)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        ({"name": "custom_batch_norm", "momentum": 0.6}, UpdateBatchNormalization),
        ({"name": "group_norm", "channels_per_group": 16}, keras.layers.GroupNormalization),
    ],
)
def test_what_takes_the_place_of_a_norm_without_scale_and_offset_has_none_either(layer, kind):
    model = network(model="cifar_fast", norm_layer=layer)
    norm = model.get_layer("block1_norm1")
    assert type(norm) is kind
    assert (norm.center, norm.scale) == (False, False)
    assert getattr(norm, "momentum", 0.6) == 0.6
    assert getattr(norm, "groups", 4) == 4


def test_layers_that_run_first_stand_first_and_keep_the_names_of_the_rest():
    model = network(eight_bit_transfer=True, accelerator_side_preprocess=True)
    names = [layer.name for layer in model.layers]
    assert names[1:4] == [
        "eight_bit_transfer_decompression_layer",
        "preprocessing_layer",
        "conv2d_0",
    ]
    assert model.inputs[0].dtype == "uint8"


def test_recommended_splits_divide_the_parameters():
    model = network(model="toy_model_bn")
    assert recommended_splits(model, 1) == []
    (split,) = recommended_splits(model, 2)
    before = [layer.name for layer in model.layers].index(split)
    so_far = sum(layer.count_params() for layer in model.layers[: before + 1])
    assert so_far >= model.count_params() / 2 > so_far - model.get_layer(split).count_params()
