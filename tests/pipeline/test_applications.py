"""Every network of `keras.applications`, cut by cost into four stages, is the whole network."""

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.pipeline.stages import calls_of, make_stages, stage_assignment
from tests.equivalence.side_by_side import assert_same
from tests.pipeline.test_stages import staged, whole

pytestmark = pytest.mark.integration

# The smallest images that they take, where that is not 32 pixels.
SIZES = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
NETWORKS = [name for name, value in vars(keras.applications).items() if name[0].isupper()]


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_those_of_the_whole(name, rng):
    size = SIZES.get(name, 32)
    make = getattr(keras.applications, name)
    model = convoy.prepare(make(weights=None, input_shape=(size, size, 3), classes=10))
    convoy.split(model, stages=4, batch_size=2)
    assignment = stage_assignment(model)
    assert max(assignment) == 3
    x = rng.uniform(0, 255, size=(2, size, size, 3)).astype("float32")
    stages = make_stages(model, calls_of(model), assignment)
    expected = whole(model, x, training=False)
    found = staged(model, stages, x, training=False)
    assert_same(found[:2], expected[:2])
    assert_same({path: found[2][path] for path in expected[2]}, expected[2])
    jax.clear_caches()


@pytest.mark.slow
def test_they_are_all_there():
    assert len(NETWORKS) > 30
    assert np.isin(["ResNet50", "EfficientNetB0", "NASNetMobile", "ConvNeXtTiny"], NETWORKS).all()
