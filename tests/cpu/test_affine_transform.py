"""Differential tests against Keras's own operation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.cpu.affine_transform import FILL_MODES, affine_transform
from keras.src.backend.jax import image

IDENTITY = np.array([1, 0, 0, 0, 1, 0, 0, 0], "float32")


def transforms(rng, count, strength):
    """Return random affine transforms; with a strength of 1 they reach far out of an image."""
    change = rng.uniform(-1, 1, (count, 8)) * [1, 1, 30, 1, 1, 30, 0, 0] * strength
    return (IDENTITY + change).astype("float32")


def never(*args, **kwargs):
    raise AssertionError("Keras's function was used")


def with_keras(fill_mode, fill_value=0.0):
    return lambda images, transform: image.affine_transform(
        images, transform, "bilinear", fill_mode, fill_value, "channels_last"
    )


def here(original, fill_mode, fill_value=0.0):
    return lambda images, transform: affine_transform(
        original, images, transform, "bilinear", fill_mode, fill_value, "channels_last"
    )


# Keras divides by zero to mirror an axis of one pixel.
@pytest.mark.parametrize(
    ("fill_mode", "shape"),
    [*((mode, (5, 7, 9, 3)) for mode in FILL_MODES), ("reflect", (2, 1, 9, 1))],
)
@pytest.mark.parametrize("strength", [1, pytest.param(0.02, marks=pytest.mark.slow)])
def test_images_and_their_gradient_are_those_of_keras(rng, fill_mode, shape, strength):
    images = rng.uniform(0, 1, shape).astype("float32")
    transform = transforms(rng, len(images), strength)
    weights = rng.normal(size=shape).astype("float32")

    def both(function):
        def loss(images):
            result = function(images, transform)
            return jnp.sum(result * weights), result

        return jax.jit(jax.grad(loss, has_aux=True))(images)

    found = both(here(image.affine_transform, fill_mode, 0.5))
    # Coordinates up to 40 are rounded at 2^-18, and slopes are up to 1.
    for actual, expected in zip(found, both(with_keras(fill_mode, 0.5)), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=3e-5)


def test_keras_is_not_used_for_what_its_layers_ask_for(rng):
    images = rng.uniform(0, 1, (2, 4, 4, 3)).astype("float32")

    def unreached(images, transform, *options):
        return jnp.full_like(images, jnp.nan)

    result = jax.jit(here(unreached, "reflect"))(images, transforms(rng, 2, 0.1))
    assert np.isfinite(result).all()


def test_numbers_that_mix_channels_are_left_to_keras(rng):
    images = rng.uniform(0, 1, (2, 4, 4, 3)).astype("float32")
    transform = transforms(rng, 2, 0.1)
    transform[1, 6] = 0.25
    expected = with_keras("reflect")(images, transform)
    result = jax.jit(here(image.affine_transform, "reflect"))(images, transform)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "changed",
    [
        {"interpolation": "nearest"},
        {"data_format": "channels_first"},
        {"dtype": "bfloat16"},
        {"shape": (4, 4, 3)},
    ],
)
def test_other_cases_are_left_to_keras(changed):
    options = {"interpolation": "bilinear", "data_format": "channels_last"}
    options |= {key: value for key, value in changed.items() if key in options}
    images = jnp.zeros(changed.get("shape", (2, 4, 4, 3)), changed.get("dtype", "float32"))
    with pytest.raises(AssertionError, match="Keras's function was used"):
        affine_transform(never, images, jnp.asarray(np.tile(IDENTITY, (2, 1))), **options)
