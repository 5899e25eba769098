import numpy as np
import pytest
from convoy.train.models.resnet import resnet
from keras import layers


def make(*, bottleneck, blocks=(1, 1, 1, 1), side=32):
    return resnet((side, side, 3), 4, blocks=blocks, bottleneck=bottleneck, name="small")


@pytest.mark.parametrize(("bottleneck", "widening"), [(False, 1), (True, 4)])
def test_later_stacks_halve_the_sides_and_double_the_channels(bottleneck, widening):
    model = make(bottleneck=bottleneck, side=64)
    for stack, (side, filters) in enumerate(((16, 64), (8, 128), (4, 256), (2, 512)), start=2):
        output = model.get_layer(f"conv{stack}_block1_out").output
        assert output.shape == (None, side, side, widening * filters)
    assert (model.name, model.output_shape) == ("small", (None, 4))


def test_the_stride_of_a_bottleneck_is_in_its_3_x_3_convolution():
    model = make(bottleneck=True)
    block = [model.get_layer(f"conv3_block1_{part}_conv") for part in range(4)]
    assert [layer.kernel_size[0] for layer in block] == [1, 1, 3, 1]
    assert [layer.strides[0] for layer in block] == [2, 1, 2, 1]


def test_the_stride_of_a_basic_block_is_in_its_first_convolution():
    model = make(bottleneck=False)
    block = [model.get_layer(f"conv3_block1_{part}_conv") for part in range(3)]
    assert [layer.kernel_size[0] for layer in block] == [1, 3, 3]
    assert [layer.strides[0] for layer in block] == [2, 2, 1]


def test_only_the_first_block_of_a_stack_has_weights_in_its_shortcut():
    names = {layer.name for layer in make(bottleneck=False, blocks=(2, 1, 1, 1)).layers}
    assert {f"conv{stack}_block1_0_conv" for stack in (2, 3, 4, 5)} <= names
    assert "conv2_block2_2_conv" in names
    assert "conv2_block2_0_conv" not in names


@pytest.mark.parametrize("bottleneck", [False, True])
def test_a_bottleneck_without_weights_in_its_shortcut_begins_as_the_identity(bottleneck):
    model = make(bottleneck=bottleneck, blocks=(2, 1, 1, 1))
    last = 3 if bottleneck else 2
    gammas = [model.get_layer(f"conv2_block{block}_{last}_bn").gamma.numpy() for block in (1, 2)]
    assert np.all(gammas[0] == 1)
    assert np.all(gammas[1] == (0 if bottleneck else 1))


def test_convolutions_have_no_bias():
    convolutions = [x for x in make(bottleneck=True).layers if isinstance(x, layers.Conv2D)]
    assert len(convolutions) == 1 + 4 * 4
    assert not any(layer.use_bias for layer in convolutions)
