import numpy as np
from convoy.layers import Subsample


def test_subsampling_doubles_channels_with_zeros(rng):
    x = rng.random((2, 5, 6, 3), "float32")
    y = np.asarray(Subsample()(x))
    np.testing.assert_array_equal(y[..., :3], x[:, ::2, ::2])
    assert not y[..., 3:].any()
    assert y.shape == (2, 3, 3, 6)
