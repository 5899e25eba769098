import pytest
from convoy.layers import Subsample
from convoy.train.models.cifar_resnet import cifar_resnet
from keras import layers


@pytest.mark.parametrize("blocks", [1, 2])
def test_is_named_by_the_number_of_its_layers_with_weights(blocks):
    model = cifar_resnet((8, 8, 3), 10, blocks=blocks)
    kinds = (layers.Conv2D, layers.Dense)
    count = sum(isinstance(layer, kinds) for layer in model.layers)
    assert count == 6 * blocks + 2
    assert model.name == f"cifar_resnet{count}"


def test_later_stacks_halve_the_sides_and_double_the_channels():
    model = cifar_resnet((16, 16, 3), 5, blocks=2)
    for stack, shape in ((2, (16, 16, 16)), (3, (8, 8, 32)), (4, (4, 4, 64))):
        for block in (1, 2):
            output = model.get_layer(f"conv{stack}_block{block}_post_addition_relu").output
            assert output.shape == (None, *shape)
    assert model.output_shape == (None, 5)


def test_shortcuts_have_no_weights():
    model = cifar_resnet((8, 8, 3), 10, blocks=2)
    shortcuts = [layer for layer in model.layers if isinstance(layer, Subsample)]
    names = [layer.name for layer in shortcuts]
    assert names == ["conv3_block1_shortcut", "conv4_block1_shortcut"]
    assert not any(layer.weights for layer in shortcuts)


def test_convolutions_have_no_bias():
    model = cifar_resnet((8, 8, 3), 10, blocks=1)
    convolutions = [layer for layer in model.layers if isinstance(layer, layers.Conv2D)]
    assert not any(layer.use_bias for layer in convolutions)
