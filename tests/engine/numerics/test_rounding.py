"""Stochastic rounding, number by number; upstream's `test_stochastic_rounding` in a model."""

import convoy
import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
from convoy.engine.numerics.rounding import _random_bits, round_stochastically

pytestmark = pytest.mark.integration

TYPES = {"float16": jnp.float16, "bfloat16": jnp.bfloat16}
DRAWS = 20_000

# A few numbers in each range of float16: normal, subnormal, below the smallest.
NUMBERS = [1.0003, -1.0003, 3.14159, 1000.3, -6.1e4, 2.5e-5, -3.3e-6, 7e-8, 1e-8, -1e-9]


def round_many(value, dtype, draws=DRAWS, seed=0):
    values = jnp.full((draws,), value, jnp.float32)
    rounded = jax.jit(lambda v: round_stochastically(v, dtype, jax.random.key(seed)))(values)
    assert rounded.dtype == dtype
    return np.asarray(rounded).astype(np.float64)


def neighbours(value, dtype):
    """Return the two numbers of a 16-bit type around a number, by counting in its bits."""
    kind = np.float16 if dtype == jnp.float16 else ml_dtypes.bfloat16
    infinity = np.array(np.inf, kind).view(np.uint16)
    every = np.arange(infinity, dtype=np.uint16).view(kind).astype(np.float64)
    size = abs(np.float64(np.float32(value)))
    low, high = every[every <= size].max(), every[every >= size].min()
    return sorted([np.sign(value) * low, np.sign(value) * high])


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("value", NUMBERS)
def test_only_the_two_neighbours_occur_and_their_mean_is_the_number(value, name):
    low, high = neighbours(value, TYPES[name])
    rounded = round_many(value, TYPES[name])
    assert set(rounded) <= {low, high}
    exact = np.float64(np.float32(value))
    chance = (exact - low) / (high - low)
    # Six standard deviations of a count of that chance.
    sharded = 6 * np.sqrt(chance * (1 - chance) / DRAWS)
    assert abs(np.mean(rounded == high) - chance) <= sharded


def test_random_bits_are_uniform_and_independent():
    count = 1 << 16
    keys = [jax.random.fold_in(jax.random.key(3), number) for number in range(3)]
    words = np.stack([np.asarray(_random_bits(key, (count // 8, 8))).ravel() for key in keys])
    bits = (words[..., None] >> np.arange(32, dtype=np.uint32) & 1).astype(bool)
    # Six standard deviations of the mean of that many fair coins.
    limit = 6 * 0.5 / np.sqrt(count)
    assert (abs(bits.mean(axis=1) - 0.5) < limit).all()
    pairs = {
        "of neighbours": (bits, np.roll(bits, 1, axis=1)),
        "half an array apart": (bits, np.roll(bits, count // 2, axis=1)),
        "of two keys": (bits, np.roll(bits, 1, axis=0)),
        "next to each other in a word": (bits, np.roll(bits, 1, axis=2)),
    }
    for name, (one, other) in pairs.items():
        assert (abs((one == other).mean(axis=1) - 0.5) < limit).all(), name


@pytest.mark.parametrize("name", TYPES)
def test_numbers_that_the_type_holds_stay_what_they_are(name):
    bits = np.arange(0x10000, dtype=np.uint16)
    values = jax.lax.bitcast_convert_type(jnp.asarray(bits), TYPES[name])
    wide = values.astype(jnp.float32)
    rounded = round_stochastically(wide, TYPES[name], jax.random.key(1))
    # XLA takes float32's own subnormal numbers for zero; of bfloat16 those are a few.
    expected = np.asarray(wide.astype(TYPES[name]).astype(jnp.float32))
    np.testing.assert_array_equal(np.asarray(rounded.astype(jnp.float32)), expected)


@pytest.mark.parametrize("name", TYPES)
def test_infinite_and_no_number_stay_so(name):
    values = jnp.array([jnp.inf, -jnp.inf, jnp.nan], jnp.float32)
    rounded = round_stochastically(values, TYPES[name], jax.random.key(0))
    np.testing.assert_array_equal(np.asarray(rounded, "float32"), [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("sign", [1, -1])
def test_only_what_rounds_to_infinity_anyway_overflows(sign):
    # float16 ends at 65504; from 65520 on, the nearest is infinity.
    np.testing.assert_array_equal(round_many(sign * 65519.0, jnp.float16, 200), sign * 65504)
    np.testing.assert_array_equal(round_many(sign * 65520.0, jnp.float16, 200), sign * np.inf)
    largest = float(jnp.finfo(jnp.bfloat16).max)
    np.testing.assert_array_equal(
        round_many(sign * largest * 1.001, jnp.bfloat16, 200), sign * largest
    )


def test_another_key_rounds_another_way_and_the_same_key_the_same():
    first, again, other = (round_many(1.0003, jnp.float16, 100, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def train_large_weight(rounding, word="16.16", devices=1, steps=10, updates=250, **strategy):
    """Upstream's case: weight 1000, 250 updates by 1e-3."""
    chosen = convoy.Strategy(devices, precision=word, stochastic_rounding=rounding, **strategy)
    with chosen.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(64, use_bias=False)])
    model.set_weights([np.full((1, 64), 1000.0, model.layers[0].kernel.dtype)])
    model.compile(keras.optimizers.SGD(0.064), "mae", steps_per_execution=steps)
    x = np.ones((updates * devices, 1), "float32")
    model.fit(x, np.zeros((len(x), 64)), batch_size=1, verbose=0)
    return model


@pytest.mark.parametrize("word", ["16.16", "bf16.16"])
def test_small_updates_are_lost_without_and_kept_with_it(word):
    off = train_large_weight("off", word).get_weights()[0]
    np.testing.assert_array_equal(off.astype("float32"), 1000)
    on = train_large_weight("on", word).get_weights()[0].astype("float32")
    assert (on < 1000).any()
    # 64 weights, each with 250 chances of one unit down: six standard deviations of their mean.
    unit = 0.5 if word == "16.16" else 4.0
    chance = 0.001 / unit
    sharded = 6 * unit * np.sqrt(250 * chance / 64)
    assert abs(on.mean() - 999.75) < sharded


def test_replicas_round_alike():
    model = train_large_weight("replica_identical", devices=2)
    shards = [np.asarray(s.data) for s in model.trainable_variables[0].value.addressable_shards]
    assert len(shards) == 2
    assert (shards[0] != 1000).any()
    np.testing.assert_array_equal(shards[0], shards[1])


def test_the_same_seed_gives_the_same_weights_whatever_the_device_loop():
    weights = []
    for steps in (1, 10):
        keras.utils.set_random_seed(5)
        weights.append(train_large_weight("on", steps=steps).get_weights()[0])
    np.testing.assert_array_equal(*weights)
    keras.utils.set_random_seed(6)
    assert (train_large_weight("on").get_weights()[0] != weights[0]).any()


def test_draws_nothing_from_the_generators_of_the_user():
    weights = []
    for rounding in ("off", "on"):
        keras.utils.set_random_seed(5)
        with convoy.Strategy(precision="16.16", stochastic_rounding=rounding).scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
        model.fit(np.zeros((4, 2)), np.zeros((4, 2)), verbose=0)
        weights.append([*model.get_weights(), keras.random.normal((3,)), np.random.normal()])
    for off, on in zip(*weights, strict=True):
        np.testing.assert_array_equal(off, on)


def test_32_bit_weights_are_untouched_by_it():
    def train(rounding):
        keras.utils.set_random_seed(5)
        with convoy.Strategy(stochastic_rounding=rounding).scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        model.compile("adam", "mse")
        rng = np.random.default_rng(0)
        model.fit(rng.normal(size=(16, 2)), rng.normal(size=(16, 2)), batch_size=4, verbose=0)
        return model.get_weights()

    np.testing.assert_equal(train("on"), train("off"))


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="'ON' is unknown"):
        convoy.Strategy(stochastic_rounding="ON")
