import jax
import keras
import numpy as np
import pytest
from convoy import cpu
from convoy.serving.forward_pass import ForwardPass, input_specs
from convoy.serving.signature import TensorSpec
from tests.serving.models import classifier


def unchanged(trace, weights):
    return trace


@pytest.mark.parametrize("rewrite", [unchanged, cpu.fold])
def test_outputs_are_the_models(rewrite, rng):
    model = classifier()
    images = rng.normal(size=(2, 8, 8, 3)).astype(np.float32)
    forward = ForwardPass(model, 2, rewrite)
    (found,) = jax.jit(forward.run)(forward.constants, images)
    np.testing.assert_allclose(found, model(images), rtol=1e-4, atol=1e-6)


def test_what_depends_on_weights_alone_is_a_constant():
    whole, folded = (ForwardPass(classifier(), 1, rewrite) for rewrite in (unchanged, cpu.fold))
    names = [[one.primitive.name for one in forward.equations] for forward in (whole, folded)]
    assert "rsqrt" not in names[0] + names[1]
    assert len(names[1]) < len(names[0])


def test_the_signature_has_names_types_and_shapes():
    model = classifier()
    signature = ForwardPass(model, 3, unchanged).signature(model, ["scores"])
    assert signature.inputs == (TensorSpec("image", "float32", (8, 8, 3)),)
    assert signature.outputs == (TensorSpec("scores", "float32", (5,)),)


def test_only_the_batch_may_be_open():
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="Only the batch size may be unknown"):
        input_specs(model)
