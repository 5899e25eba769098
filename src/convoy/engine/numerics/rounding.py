"""Stochastic rounding: up or down at random, so that the expected result is the value itself."""

import math

import jax
import jax.numpy as jnp

HALF_TYPES = (jnp.float16, jnp.bfloat16)

# float16's smallest normal number; numbers below it are multiples of the smallest subnormal.
_SMALLEST_NORMAL = 2.0**-14
_SMALLEST = 2.0**-24


def is_half(value: jax.Array) -> bool:
    return value.dtype in HALF_TYPES


def round_stochastically(value: jax.Array, dtype: jnp.dtype, key: jax.Array) -> jax.Array:
    """Round float32 numbers to one of their two neighbours in a 16-bit type.

    The nearer neighbour is more likely, so that the mean over many roundings is the number. A
    number that the type can represent does not change, and neither do infinity and NaN. A number
    becomes infinite only if rounding to nearest makes it infinite too.

    Args:
        value: numbers in float32.
        dtype: `float16` or `bfloat16`.
        key: a random key of JAX. The same key rounds the same way, on every replica.
    """
    bits = jax.lax.bitcast_convert_type(value, jnp.uint32)
    random = _random_bits(key, value.shape)
    # `spare` bits are dropped. Adding a random number to them carries into the kept bits with a
    # probability equal to the dropped fraction of one unit. The sign bit has no effect on this.
    spare = 16 if dtype == jnp.bfloat16 else 13
    kept = (bits + (random >> (32 - spare))) >> spare << spare
    if dtype == jnp.bfloat16:
        rounded = jax.lax.bitcast_convert_type((kept >> 16).astype(jnp.uint16), jnp.bfloat16)
    else:
        rounded = jax.lax.bitcast_convert_type(kept, jnp.float32)
        small = jnp.abs(value) < _SMALLEST_NORMAL
        rounded = jnp.where(small, _round_small(value, random), rounded).astype(jnp.float16)
    nearest = value.astype(dtype)
    largest = jnp.copysign(jnp.finfo(dtype).max.astype(dtype), nearest)
    return jnp.where(
        jnp.isfinite(nearest), jnp.where(jnp.isfinite(rounded), rounded, largest), nearest
    )


def _random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return 32 random bits for each element: a hash of its index and of two words from the key.

    For the weights of ResNet-50, JAX's own generator takes a sixth of the time of a training step.
    Rounding needs uniform bits that are independent of each other and of the bits of other keys; it
    does not need cryptographic strength.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    index = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    # Multiples of the golden ratio spread neighbours before they are mixed.
    return _mix(_mix(index * jnp.uint32(0x9E3779B9) + first) ^ second)


def _mix(bits: jax.Array) -> jax.Array:
    """Return a permutation of 32-bit words in which each bit depends on all bits of the operand."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ bits >> shift) * jnp.uint32(factor)
    return bits ^ bits >> 16


def _round_small(value: jax.Array, random: jax.Array) -> jax.Array:
    """Round to a multiple of float16's smallest number; the scaling by a power of two is exact."""
    scaled = value / _SMALLEST
    below = jnp.floor(scaled)
    # 24 random bits are a number that float32 holds exactly.
    up = (random >> 8).astype(jnp.float32) * 2.0**-24 < scaled - below
    return jnp.where(up, below + 1, below) * _SMALLEST
