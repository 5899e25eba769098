"""Which convolutions of a model become one call with what follows, and that the results stay."""

from collections import Counter

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.cpu import lowering
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .reference import jax_alone

pytestmark = [pytest.mark.usefixtures("native"), pytest.mark.integration]

layers = keras.layers

# As in `tests/equivalence`; but a scale that is multiplied into the weights rounds each of them, so
# an output near zero that is a sum of large products is compared on the scale of the outputs.
RTOL = 1e-5
ATOL = 1e-6


def assert_close(got, expected):
    scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(got, expected, rtol=RTOL, atol=ATOL * scale)


def randomise(model, seed=0):
    """Give every variable a value that a mistake would show in."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        if np.issubdtype(np.dtype(variable.dtype), np.integer):
            continue
        values = rng.normal(size=variable.shape)
        is_variance = "variance" in variable.path
        fan_in = max(1, int(np.prod(variable.shape[:-1])))
        variable.assign(np.abs(values) + 0.5 if is_variance else values / np.sqrt(fan_in))
    return model


def stock_predict(model, x):
    with jax_alone():
        return jax.jit(lambda x: model(x, training=False))(x)


def fused_predict(model, x):
    """Predict on the engine; return the outputs and how often each kernel was chosen."""
    prepared = convoy.prepare(model, convoy.Strategy(devices=1))
    lowering.reset_counts()
    return prepared.predict_on_batch(x), lowering.counts()


def check(model, x, seed=0):
    """Compare with stock Keras; return the numbers of fused calls by what they include."""
    randomise(model, seed)
    expected = stock_predict(model, x)
    got, counts = fused_predict(model, x)
    jax.tree.map(assert_close, got, expected)
    found: Counter[str] = Counter()
    for key, n in counts.items():
        if key.startswith("convolution"):
            kernel, is_fused, follows = key.partition(", inference")
            found[follows if is_fused else kernel] += n
    return dict(found)


def data(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def model_of(shape, build):
    inputs = keras.Input(shape)
    return keras.Model(inputs, build(inputs))


PLAIN, RELU = "", ", rectifier"
ADD, ADD_RELU = ", addition", ", addition, rectifier"


def test_a_residual_block():
    def build(x):
        x = layers.Conv2D(8, 1, use_bias=False)(x)
        y = layers.Conv2D(8, 3, padding="same")(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(y))
        return layers.ReLU()(layers.Add()([x, y]))

    assert check(model_of((9, 9, 4), build), data(4, 9, 9, 4)) == {PLAIN: 1, RELU: 1, ADD_RELU: 1}


def test_a_block_with_a_projection_takes_the_addition_once():
    def build(x):
        y = layers.BatchNormalization()(layers.Conv2D(8, 1, strides=2)(x))
        z = layers.BatchNormalization()(layers.Conv2D(8, 3, strides=2, padding="same")(x))
        return layers.Activation("relu")(layers.Add()([y, z]))

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {PLAIN: 1, ADD_RELU: 1}


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_residual_block_in_half_precision_is_not_rounded_in_between(policy):
    def build(x):
        x = layers.Conv2D(32, 1, use_bias=False, dtype="float32")(x)
        y = layers.Conv2D(32, 3, padding="same")(x)
        y = layers.BatchNormalization()(y)
        return layers.ReLU()(layers.Add()([x, y]))

    def make():
        keras.utils.set_random_seed(0)
        return randomise(model_of((9, 9, 4), build))

    x = data(4, 9, 9, 4)
    exact = stock_predict(make(), x)
    keras.config.set_dtype_policy(policy)
    try:
        model = make()
    finally:
        keras.config.set_dtype_policy("float32")
    got, counts = fused_predict(model, x)
    fused = [kernel for kernel in counts if kernel.endswith(ADD_RELU)]
    assert len(fused) == 1, counts
    # The input and the weights of the convolution, its addend and the result are rounded.
    error = np.abs(np.asarray(got, np.float32) - exact).max() / np.abs(exact).max()
    assert error < {"mixed_bfloat16": 2.0**-7, "mixed_float16": 2.0**-10}[policy]


@pytest.mark.parametrize("options", [{"scale": False}, {"center": False}, {"epsilon": 0.1}])
def test_normalisation_without_some_parameters(options):
    def build(x):
        return layers.BatchNormalization(**options)(layers.Conv2D(8, 3)(x))

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {PLAIN: 1}


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("options", [{"strides": 2}, {"dilation_rate": 2}, {"groups": 2}, {}])
def test_kinds_of_convolution(padding, options):
    def build(x):
        x = layers.Conv2D(8, 3, padding=padding, **options)(x)
        return layers.ReLU()(layers.BatchNormalization()(x))

    found = check(model_of((11, 10, 16), build), data(4, 11, 10, 16))
    assert found == {RELU: 1} or options.get("groups")


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("strides", [1, 2])
def test_depthwise(multiplier, strides):
    def build(x):
        x = layers.DepthwiseConv2D(3, strides, padding="same", depth_multiplier=multiplier)(x)
        return layers.ReLU(6.0)(layers.BatchNormalization()(x))

    found = check(model_of((9, 9, 16), build), data(4, 9, 9, 16))
    assert multiplier > 1 or sum(found.get(kind, 0) for kind in (PLAIN, RELU)) == 1


def test_separable():
    def build(x):
        return layers.SeparableConv2D(8, 3, activation="relu")(x)

    check(model_of((9, 9, 8), build), data(4, 9, 9, 8))


@pytest.mark.parametrize(
    ("layer", "shape"), [(layers.Conv1D, (12, 8)), (layers.Conv3D, (6, 7, 5, 8))]
)
def test_one_and_three_dimensions(layer, shape):
    def build(x):
        y = layers.BatchNormalization()(layer(8, 3, padding="same")(x))
        return layers.ReLU()(layers.Add()([x, y]))

    assert check(model_of(shape, build), data(4, *shape)) == {ADD_RELU: 1}


def test_channels_first():
    def build(x):
        x = layers.Conv2D(8, 3, data_format="channels_first")(x)
        return layers.ReLU()(layers.BatchNormalization(axis=1)(x))

    check(model_of((8, 9, 9), build), data(4, 8, 9, 9))


def test_a_result_with_two_readers_ends_the_chain():
    def build(x):
        y = layers.Conv2D(8, 3)(x)
        return [layers.ReLU()(layers.BatchNormalization()(y)), y]

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {PLAIN: 1}


def test_a_sum_with_itself_is_no_addend():
    def build(x):
        y = layers.Conv2D(8, 3)(x)
        return layers.Add()([y, y])

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {PLAIN: 1}


def test_normalisation_before_the_convolution_stays():
    def build(x):
        return layers.Conv2D(8, 3, padding="same")(layers.BatchNormalization()(x))

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {PLAIN: 1}


def test_what_was_added_is_not_scaled():
    def build(x):
        y = layers.Conv2D(4, 3, padding="same")(x)
        return layers.ReLU()(layers.BatchNormalization()(layers.Add()([x, y])))

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {ADD: 1}


@pytest.mark.parametrize("shape", [(1, 1, 4), (8, 8, 1), (1, 8, 4)])
def test_an_addend_of_another_shape_is_left_alone(shape):
    inputs = [keras.Input((8, 8, 4)), keras.Input(shape)]
    y = layers.Conv2D(4, 3, padding="same")(inputs[0])
    model = keras.Model(inputs, layers.ReLU()(layers.Add()([y, inputs[1]])))
    assert check(model, [data(4, 8, 8, 4), data(4, *shape)]) == {PLAIN: 1}


def test_a_value_that_changes_with_the_batch_is_not_folded():
    def build(x):
        y = layers.Conv2D(8, 3)(x)
        gate = layers.Dense(8)(layers.GlobalAveragePooling2D(keepdims=True)(x))
        return layers.Multiply()([y, gate])

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {PLAIN: 1}


def test_padding_goes_into_the_convolution():
    def build(x):
        x = layers.ZeroPadding2D(((3, 2), (1, 3)))(x)
        return layers.Conv2D(8, 5, strides=2)(x)

    model = randomise(model_of((9, 9, 4), build))
    assert check(model, data(4, 9, 9, 4)) == {PLAIN: 1}


def test_padding_with_several_readers_stays():
    def build(x):
        x = layers.ZeroPadding2D(1)(x)
        return layers.Add()([layers.Conv2D(8, 3)(x), layers.Conv2D(8, 3)(x)])

    assert check(model_of((9, 9, 4), build), data(4, 9, 9, 4)) == {PLAIN: 1, ADD: 1}


def test_a_shared_layer_and_nested_models():
    shared = layers.Conv2D(4, 3, padding="same", activation="relu")
    inner = keras.Sequential([layers.Conv2D(4, 1), layers.BatchNormalization(), layers.ReLU()])

    def build(x):
        return layers.Dropout(0.5)(inner(layers.Dropout(0.5)(shared(shared(x)))))

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {RELU: 3}


def test_several_outputs():
    def build(x):
        y = layers.Conv2D(4, 3, activation="relu")(x)
        return {"one": y, "two": layers.Conv2D(2, 1)(y), "sum": layers.GlobalMaxPooling2D()(y)}

    assert check(model_of((8, 8, 4), build), data(4, 8, 8, 4)) == {PLAIN: 1, RELU: 1}


def test_a_bias_and_a_rectifier_in_half_precision_are_part_of_the_call():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = model_of((8, 8, 4), lambda x: layers.Conv2D(4, 3, activation="relu")(x))
    finally:
        keras.config.set_dtype_policy("float32")
    _, counts = fused_predict(model, data(4, 8, 8, 4))
    assert [kernel.partition(", inference")[2] for kernel in counts] == [RELU]


def test_what_is_not_a_number_stays_so():
    model = randomise(model_of((8, 8, 4), lambda x: layers.Conv2D(8, 3, activation="relu")(x)))
    x = data(2, 8, 8, 4)
    x[0, 4, 4, 0] = np.nan
    expected = stock_predict(model, x)
    got, _ = fused_predict(model, x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7, 32])
def test_batches_of_any_size(batch):
    def build(x):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(x)))
        return layers.ReLU()(layers.Add()([x, layers.Conv2D(16, 3, padding="same")(y)]))

    found = check(model_of((9, 9, 16), build), data(batch, 9, 9, 16))
    assert found == {RELU: 1, ADD_RELU: 1}


def block(draw, x):
    """Add some layers that a chain may or may not reach over."""
    filters = draw(st.sampled_from([x.shape[-1], 3, 8]))
    kind = draw(st.sampled_from(["plain", "plain", "grouped", "depthwise"]))
    options = {
        "padding": draw(st.sampled_from(["same", "valid"])),
        "use_bias": draw(st.booleans()),
        "activation": draw(st.sampled_from([None, "relu", "tanh"])),
    }
    spatial = min(x.shape[1:-1])
    kernel = draw(st.sampled_from([k for k in (1, 2, 3) if k <= spatial]))
    step = draw(st.sampled_from([{}, {"strides": 2}, {"dilation_rate": 2}]))
    if (kernel - 1) * step.get("dilation_rate", 1) + 1 > spatial:
        step = {}
    if kind == "depthwise":
        y = layers.DepthwiseConv2D(kernel, **options, **step)(x)
    else:
        groups = 2 if kind == "grouped" and x.shape[-1] % 2 == filters % 2 == 0 else 1
        y = layers.Conv2D(filters, kernel, groups=groups, **options, **step)(x)
    if draw(st.booleans()):
        y = layers.BatchNormalization(scale=draw(st.booleans()), center=draw(st.booleans()))(y)
    if y.shape == x.shape and draw(st.booleans()):
        y = layers.Add()(draw(st.permutations([x, y])))
    if draw(st.booleans()):
        y = layers.ReLU()(y)
    return y


def check_random_network(source):
    # Drawn in the test: making a Keras layer draws from Python's own generator.
    draw = source.draw
    shape = (draw(st.integers(3, 9)), draw(st.integers(3, 9)), draw(st.sampled_from([1, 3, 8])))
    inputs = keras.Input(shape)
    results = [inputs]
    for _ in range(draw(st.integers(1, 4))):
        results.append(block(draw, results[-1]))
    outputs = results[-1:] + draw(st.sampled_from([[], results[1:2]]))
    x = data(draw(st.integers(1, 7)), *shape, seed=draw(st.integers(0, 100)))
    check(keras.Model(inputs, outputs), x)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_networks(source):
    check_random_network(source)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_many_random_networks(source):
    check_random_network(source)
