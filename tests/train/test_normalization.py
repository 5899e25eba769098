import keras
import pytest
from convoy.data import DATASETS
from convoy.layers import UpdateBatchNormalization
from convoy.train.flags import Options
from convoy.train.network import make_network


def network(**options):
    return make_network(Options(**options), DATASETS["mnist"], 1)


def test_by_default_the_networks_norms_are_per_update():
    norm = network(model="toy_model_bn").get_layer("bn_0")
    assert type(norm) is UpdateBatchNormalization
    assert norm.momentum == 0.9
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
