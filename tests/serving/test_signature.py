import numpy as np
import pytest
from convoy.serving.errors import ServingError
from convoy.serving.signature import Signature, TensorSpec

SIGNATURE = Signature(
    (TensorSpec("image", "uint8", (4, 4, 3)), TensorSpec("scale", "bfloat16", ())),
    (TensorSpec("output_0", "float32", (2,)),),
)


def arrays(samples=2):
    scale = np.zeros(samples, SIGNATURE.inputs[1].numpy_dtype)
    return {"image": np.zeros((samples, 4, 4, 3), np.uint8), "scale": scale}


def test_a_signature_survives_json():
    assert Signature.from_json(SIGNATURE.to_json()) == SIGNATURE


def test_the_number_of_samples_is_returned():
    assert SIGNATURE.check(arrays(3)) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": np.zeros((2, 4, 4, 1), np.uint8)}, r"expected \[samples, 4, 4, 3\]"),
        ({"image": np.zeros((2, 4, 4, 3), np.int8)}, "is of type int8; expected uint8"),
        ({"image": np.zeros((3, 4, 4, 3), np.uint8)}, "have 2, 3 samples"),
        ({"image": np.zeros((), np.uint8)}, r"has the shape \[\]"),
        ({"else": np.zeros(2)}, "has the inputs else, image, scale, and the model image, scale"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ServingError, match=message):
        SIGNATURE.check(arrays() | change)


def test_an_unknown_input_is_named_with_the_known_ones():
    with pytest.raises(ServingError, match="'x' is not one of the model's: image, scale"):
        SIGNATURE.input("x")


def test_images_are_bytes_in_one_or_three_channels():
    shapes = {(4, 4, 3): True, (4, 4, 1): True, (4, 4, 2): False, (4, 4): False}
    for shape, is_image in shapes.items():
        assert TensorSpec("x", "uint8", shape).is_image == is_image
    assert not TensorSpec("x", "float32", (4, 4, 3)).is_image
