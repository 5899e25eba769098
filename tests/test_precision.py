"""Mixed precision. Covers upstream's `test_precision`: policies, types, underflow, bad names."""

import threading

import convoy
import keras
import numpy as np
import pytest
from convoy import devices, precision

TYPES = {
    "32.32": ("float32", "float32"),
    "16.32": ("float16", "float32"),
    "16.16": ("float16", "float16"),
    "bf16.32": ("bfloat16", "float32"),
    "bf16.16": ("bfloat16", "bfloat16"),
}


def small_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


@pytest.mark.parametrize("word", TYPES)
def test_a_word_says_in_what_layers_compute_and_in_what_weights_are_kept(word):
    with convoy.Strategy(precision=word).scope():
        model = small_model()
    layer = model.layers[0]
    assert (layer.compute_dtype, layer.kernel.dtype) == TYPES[word]
    assert model(np.ones((1, 3))).dtype == TYPES[word][0]
    found = precision.find(word)
    assert (found.compute_dtype, found.update_dtype) == TYPES[word]


@pytest.mark.parametrize("word", ["32.16", "16.bf16", "64.64", "bf16.32.1"])
def test_an_unsupported_pair_is_refused_with_a_list_of_the_known_ones(word):
    with pytest.raises(ValueError, match=r"Pass one of '32.32', '16.32', '16.16', 'bf16.32'"):
        convoy.Strategy(precision=word)


@pytest.mark.parametrize("word", TYPES)
def test_a_policy_of_keras_names_the_same_precision(word):
    found = precision.find(word)
    assert precision.find(found.policy) is found
    assert convoy.Strategy(precision=found.policy).precision is found


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_auto_is_what_the_device_is_fastest_in_and_says_so(monkeypatch, caplog, policy):
    monkeypatch.setattr(devices, "fastest_precision", lambda device: policy)
    strategy = convoy.Strategy(precision="auto")
    assert strategy.precision is precision.find(policy)
    assert caplog.messages == [f"precision='auto' is {policy!r} here"]
    with strategy.scope():
        assert small_model().dtype_policy.name == policy


def test_says_what_is_not_supported():
    with pytest.raises(ValueError, match="computing in float32 and updating in float16 is not"):
        precision.find("32.16")


@pytest.mark.parametrize("word", ["half", "16", "", 16.32, "mixed_float32"])
def test_what_is_not_a_pair_is_refused(word):
    with pytest.raises(ValueError, match=r"is neither two precisions with a dot .* nor a policy"):
        precision.find(word)


def test_the_scope_leaves_the_policy_as_it_was():
    keras.config.set_dtype_policy("bfloat16")
    try:
        with convoy.Strategy(precision="16.32").scope():
            assert keras.config.dtype_policy().name == "mixed_float16"
        assert keras.config.dtype_policy().name == "bfloat16"
        with pytest.raises(ZeroDivisionError), convoy.Strategy(precision="16.16").scope():
            _ = 1 / 0
        assert keras.config.dtype_policy().name == "bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")


def test_without_a_word_the_policy_is_keras_own():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        with convoy.Strategy().scope():
            assert small_model().dtype_policy.name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_scope_sets_the_policy_of_its_own_thread():
    made = []
    with convoy.Strategy(precision="16.16").scope():
        thread = threading.Thread(target=lambda: made.append(small_model()))
        thread.start()
        thread.join()
    assert made[0].dtype_policy.name == "float32"


def test_prepare_refuses_a_model_of_another_precision():
    with pytest.raises(ValueError, match=r"precision='16.32'.*'mixed_float16', but 'seq"):
        convoy.prepare(small_model(), convoy.Strategy(precision="16.32"))


def test_a_clone_that_keeps_another_precision_is_refused():
    original = small_model()
    with convoy.Strategy(precision="16.32").scope():
        clone = keras.models.clone_model(original)
    with pytest.raises(ValueError, match="A model that is loaded or cloned keeps its policy"):
        clone.predict(np.ones((1, 3)), verbose=0)


def test_prepare_takes_a_model_of_the_same_precision_with_a_layer_of_its_own():
    layers = [keras.layers.Dense(2, dtype="mixed_float16"), keras.layers.Softmax(dtype="float32")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    assert convoy.prepare(model, convoy.Strategy(precision="16.32")) is model


@pytest.mark.parametrize("word", TYPES)
def test_a_product_too_small_for_16_bits_underflows_where_it_is_computed_in_float16(word):
    """Upstream's case: 1e-7 * 0.1 is lost in 16.16 and 16.32, and not in 32.32."""
    with convoy.Strategy(precision=word).scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[0.1]], model.layers[0].kernel.dtype)])
    product = np.asarray(model.predict(np.array([[1e-7]], "float32"), verbose=0), "float32")
    assert (product[0, 0] == 0) == word.startswith("16")


@pytest.mark.parametrize("word", TYPES)
def test_a_small_step_of_a_large_weight_is_lost_in_16_bits(word):
    """Upstream's case: weight 1000 with gradient 0.1 changes in 16.32 and not in 16.16."""
    with convoy.Strategy(precision=word).scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[1000.0]], model.layers[0].kernel.dtype)])
    # Of a mean absolute error above zero, the gradient is the input.
    model.compile(keras.optimizers.SGD(1.0), "mae")
    model.fit(np.full((4, 1), 0.1), np.zeros((4, 1)), batch_size=4, verbose=0)
    weight = float(model.get_weights()[0][0, 0])
    if word.endswith(".16"):
        assert weight == 1000
    else:
        np.testing.assert_allclose(weight, 999.9, rtol=1e-6)


def test_half_partials_says_once_that_it_has_no_effect():
    precision.warn_of_half_partials.cache_clear()
    with pytest.warns(UserWarning, match="half_partials=True has no effect"):
        convoy.Strategy(half_partials=True)
    convoy.Strategy(half_partials=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_products_are_summed_in_float32(dtype):
    """What `half_partials=False` promises: ones are not lost where 16 bits stop counting them."""
    x = keras.ops.ones((4, 8192), dtype)
    np.testing.assert_array_equal(np.asarray(x @ x.T, "float32"), 8192)
    image = keras.ops.ones((1, 3, 3, 1024), dtype)
    kernel = keras.ops.ones((3, 3, 1024, 1), dtype)
    np.testing.assert_array_equal(np.asarray(keras.ops.conv(image, kernel), "float32"), 9216)
