"""Replicas, accumulation and device loop: every combination gives the update of one big batch.

Batch normalisation sees micro-batches, so it is compared with a plain loop of stock Keras over the
same micro-batches, and with the big batch where replicas share their statistics.
"""

import inspect
import itertools

import convoy
import jax
import keras
import numpy as np
import pytest
from convoy.engine.step import shard_state
from keras import layers

from .side_by_side import assert_same, make_convoy, make_stock, state

UPDATE = 32  # samples
UPDATES = 3

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "lars": lambda: convoy.optimizers.LARS(0.5, momentum=0.9, eeta=0.1),
}
REPLICAS, ACCUMULATION = (1, 2, 4), (1, 2, 8)


def plain():
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, activation="tanh")(inputs)
    return keras.Model(inputs, layers.Dense(3, "softmax")(layers.Flatten()(x)))


def dropout_off():
    inputs = keras.Input((6, 6, 2))
    x = layers.Dropout(0.0)(layers.Conv2D(4, 3, activation="tanh")(inputs))
    return keras.Model(inputs, layers.Dense(3, "softmax")(layers.Flatten()(x)))


def multi_output():
    inputs = keras.Input((6, 6, 2))
    x = layers.Flatten()(layers.Conv2D(4, 3, activation="tanh")(inputs))
    return keras.Model(inputs, [layers.Dense(3, "softmax")(x), layers.Dense(3, "softmax")(x)])


def batch_norm():
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    return keras.Model(inputs, layers.Dense(3, "softmax")(layers.Flatten()(x)))


MODELS = {"plain": plain, "dropout off": dropout_off, "multi-output": multi_output}


def maker(model, optimizer):
    def make(steps):
        made = model()
        loss = ["sparse_categorical_crossentropy"] * len(made.outputs)
        made.compile(
            optimizer(), loss, metrics=[["accuracy"]] * len(loss), steps_per_execution=steps
        )
        return made

    return make


@pytest.fixture(scope="session")
def samples():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, UPDATE * UPDATES).astype("int32")
    x = rng.normal(size=(len(y), 6, 6, 2)).astype("float32")
    x[np.arange(len(y)), y, y] += 2.0
    return x, y


def learn(model, samples, batch_size, **settings):
    x, y = samples
    targets = [y] * len(model.outputs) if len(model.outputs) > 1 else y
    settings = {"batch_size": batch_size, "epochs": 2, "verbose": 0} | settings
    return model.fit(x, targets, **settings).history


def compare(make, samples, replicas, accumulation, **strategy):
    """Compare one big batch under stock Keras with the same in parts; device loop 1 and N."""
    stock = make_stock(make)
    expected = learn(stock, samples, UPDATE), state(stock)
    for steps in (1, UPDATES * accumulation):
        model = make_convoy(
            make, steps, devices=replicas, gradient_accumulation=accumulation, **strategy
        )
        actual = learn(model, samples, UPDATE // (replicas * accumulation)), state(model)
        assert_same(actual, expected)
        assert int(model.optimizer.iterations.value) == 2 * UPDATES


CASES = list(itertools.product(REPLICAS, ACCUMULATION, MODELS, OPTIMIZERS))
# Every pair of values occurs in one of these; the rest of the matrix is slow.
FAST = {
    (1, 2, "plain", "sgd"),
    (1, 1, "plain", "lars"),
    (4, 8, "dropout off", "lars"),
    (1, 8, "multi-output", "momentum"),
    (2, 1, "dropout off", "adam"),
    (2, 2, "multi-output", "adam"),
    (2, 8, "plain", "momentum"),
    (4, 2, "dropout off", "momentum"),
    (4, 8, "multi-output", "sgd"),
}


@pytest.mark.parametrize(
    ("replicas", "accumulation", "model", "optimizer"),
    [case if case in FAST else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_an_update_is_that_of_one_big_batch(samples, replicas, accumulation, model, optimizer):
    compare(maker(MODELS[model], OPTIMIZERS[optimizer]), samples, replicas, accumulation)


def over_micro_batches(model, samples, replicas, accumulation):
    """Train a stock model by a plain loop over the micro-batches of every replica."""
    x, y = samples
    size = UPDATE // (replicas * accumulation)
    loss = keras.losses.SparseCategoricalCrossentropy()

    def forward(trainable, statistics, x, y):
        y_pred, statistics = model.stateless_call(trainable, statistics, x, training=True)
        return loss(y, y_pred), statistics

    gradient = jax.jit(jax.grad(forward, has_aux=True))
    model.optimizer.build(model.trainable_variables)
    trainable = [v.value for v in model.trainable_variables]
    statistics = [v.value for v in model.non_trainable_variables]
    optimizer = [v.value for v in model.optimizer.variables]
    for _ in range(2):
        for update in np.arange(len(x)).reshape(UPDATES, accumulation, replicas, size):
            totals, ends = [], []
            for replica in range(replicas):
                own = statistics
                for micro_batch in range(accumulation):
                    rows = update[micro_batch, replica]
                    gradients, own = gradient(trainable, own, x[rows], y[rows])
                    totals.append(gradients)
                ends.append(own)
            mean = [sum(parts) / len(parts) for parts in zip(*totals, strict=True)]
            statistics = [sum(parts) / len(parts) for parts in zip(*ends, strict=True)]
            trainable, optimizer = model.optimizer.stateless_apply(optimizer, mean, trainable)
    return [*trainable, *statistics]


BATCH_NORM_FAST = {(1, 8, "sgd"), (2, 2, "momentum"), (4, 1, "sgd")}
BATCH_NORM_CASES = list(itertools.product(REPLICAS, ACCUMULATION, OPTIMIZERS))


@pytest.mark.parametrize(
    ("replicas", "accumulation", "optimizer"),
    [
        case if case in BATCH_NORM_FAST else pytest.param(*case, marks=pytest.mark.slow)
        for case in BATCH_NORM_CASES
    ],
)
def test_batch_norm_sees_micro_batches(samples, replicas, accumulation, optimizer):
    make = maker(batch_norm, OPTIMIZERS[optimizer])
    expected = over_micro_batches(make_stock(make), samples, replicas, accumulation)
    for steps in (1, UPDATES * accumulation):
        model = make_convoy(make, steps, devices=replicas, gradient_accumulation=accumulation)
        learn(model, samples, UPDATE // (replicas * accumulation), shuffle=False)
        actual = [*model.trainable_variables, *model.non_trainable_variables]
        assert_same([np.asarray(v.value) for v in actual], [np.asarray(e) for e in expected])


@pytest.mark.parametrize(("replicas", "optimizer"), [(2, "momentum"), (4, "sgd")])
def test_shared_batch_norm_statistics_are_those_of_the_big_batch(samples, replicas, optimizer):
    make = maker(batch_norm, OPTIMIZERS[optimizer])
    compare(make, samples, replicas, 1, batch_norm_group=replicas)


class Standardized(layers.Layer):
    """Subtracts the mean over the batch, which it asks for by the number of one axis."""

    def call(self, x):
        return keras.ops.subtract(x, keras.ops.moments(x, axes=0)[0])


@pytest.mark.parametrize("replicas", [2, 4])
def test_only_statistics_over_samples_are_shared(samples, replicas):
    """Layer and group normalisation have statistics of each sample, which stay its own."""

    def normalized():
        inputs = keras.Input((6, 6, 2))
        x = layers.Conv2D(4, 3, use_bias=False)(inputs)
        x = layers.LayerNormalization()(layers.BatchNormalization(momentum=0.8)(x))
        x = layers.GroupNormalization(2)(x + layers.RMSNormalization()(x))
        x = layers.Dense(4)(layers.Flatten()(layers.UnitNormalization()(x)))
        x = layers.LayerNormalization()(Standardized()(x))
        return keras.Model(inputs, layers.Dense(3, "softmax")(x))

    make = maker(normalized, OPTIMIZERS["momentum"])
    compare(make, samples, replicas, 1, batch_norm_group=replicas)


@pytest.mark.parametrize("replicas", [2, 4])
def test_shared_batch_norm_statistics_of_masked_sequences(replicas):
    rng = np.random.default_rng(6)
    words = rng.integers(1, 9, (UPDATE * UPDATES, 7)).astype("int32")
    words[np.arange(7) >= rng.integers(2, 8, (len(words), 1))] = 0
    labels = rng.integers(0, 3, len(words)).astype("int32")

    def masked():
        inputs = keras.Input((7,), dtype="int32")
        x = layers.BatchNormalization(momentum=0.8)(layers.Embedding(9, 4, mask_zero=True)(inputs))
        return keras.Model(inputs, layers.Dense(3, "softmax")(layers.GRU(5)(x)))

    make = maker(masked, OPTIMIZERS["momentum"])
    compare(make, (words, labels), replicas, 1, batch_norm_group=replicas)


def test_groups_of_replicas_share_statistics(samples):
    """Two groups of two replicas do what two replicas do that see twice as much."""
    make = maker(batch_norm, OPTIMIZERS["momentum"])
    two = make_convoy(make, 3, devices=2)
    expected = learn(two, samples, 16, shuffle=False), state(two)
    four = make_convoy(make, 3, devices=4, batch_norm_group=2)
    assert_same((learn(four, samples, 8, shuffle=False), state(four)), expected)


@pytest.mark.parametrize("budget", [None, 0])
@pytest.mark.parametrize(
    ("replicas", "accumulation"), [(2, 2), pytest.param(1, 4, marks=pytest.mark.slow)]
)
def test_a_global_batch_is_divided(samples, replicas, accumulation, budget):
    """A script that knows of one device keeps its arguments, and gets the same result."""
    x, y = samples[0][:90], samples[1][:90]  # two updates of 32, and one of what is left
    make = maker(plain, OPTIMIZERS["momentum"])
    stock = make_stock(make)
    settings = {"validation_data": (x[:40], y[:40])}
    expected = learn(stock, (x, y), UPDATE, **settings), state(stock)
    model = make_convoy(
        make,
        2,
        devices=replicas,
        gradient_accumulation=accumulation,
        batch="global",
        data_budget=budget,
    )
    assert_same((learn(model, (x, y), UPDATE, **settings), state(model)), expected)


def test_a_global_batch_from_a_generator_is_divided(samples):
    x, y = samples

    def batches():
        for _ in range(2):
            for start in range(0, len(x), UPDATE):
                yield x[start : start + UPDATE], y[start : start + UPDATE]

    make = maker(plain, OPTIMIZERS["sgd"])
    stock = make_stock(make)
    settings = {"epochs": 2, "steps_per_epoch": UPDATES, "shuffle": False, "verbose": 0}
    expected = stock.fit(batches(), **settings).history, state(stock)
    model = make_convoy(make, 3, devices=2, gradient_accumulation=2, batch="global")
    assert_same((model.fit(batches(), **settings).history, state(model)), expected)


@pytest.mark.parametrize("budget", [None, 0])
def test_samples_that_do_not_fill_an_update_are_left_out(samples, budget):
    x, y = samples[0][:80], samples[1][:80]
    make = maker(plain, OPTIMIZERS["sgd"])
    stock = make_stock(make)
    expected = learn(stock, (x[:64], y[:64]), 32, shuffle=False), state(stock)
    model = make_convoy(make, 4, devices=2, gradient_accumulation=2, data_budget=budget)
    said = "16 of 80 samples do not fill a weight update of 32"
    with pytest.warns(UserWarning, match=said) as warned:
        actual = learn(model, (x, y), 8, shuffle=False), state(model)
    assert_same(actual, expected)
    # It points at the line that called `fit`.
    assert {warning.filename for warning in warned} == {inspect.getsourcefile(learn)}


def test_a_generator_yields_micro_batches(samples):
    x, y = samples

    def batches(size):
        while True:
            for start in range(0, len(x), size):
                yield x[start : start + size], y[start : start + size]

    make = maker(plain, OPTIMIZERS["momentum"])
    settings = {"epochs": 2, "shuffle": False, "verbose": 0}
    stock = make_stock(make)
    stock.fit(batches(UPDATE), steps_per_epoch=UPDATES, **settings)
    model = make_convoy(make, 4, devices=2, gradient_accumulation=4)
    model.fit(batches(4), steps_per_epoch=4 * UPDATES, **settings)
    assert_same(state(model), state(stock))


def test_train_on_batch_takes_a_whole_update(samples):
    x, y = samples[0][:UPDATE], samples[1][:UPDATE]
    make = maker(plain, OPTIMIZERS["adam"])
    stock = make_stock(make)
    expected = [stock.train_on_batch(x, y) for _ in range(2)], state(stock)
    model = make_convoy(make, devices=2, gradient_accumulation=4)
    assert_same(([model.train_on_batch(x, y) for _ in range(2)], state(model)), expected)


def test_schedules_count_weight_updates(samples):
    def optimizer():
        schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.01, 0.001])
        return keras.optimizers.SGD(schedule)

    compare(maker(plain, optimizer), samples, 2, 2)


def test_accumulation_is_chosen_on_the_model_too(samples):
    make = maker(plain, OPTIMIZERS["sgd"])
    stock = make_stock(make)
    expected = learn(stock, samples, UPDATE), state(stock)
    model = make_convoy(make, 4)
    model.set_gradient_accumulation(4)
    assert_same((learn(model, samples, 8), state(model)), expected)


@pytest.mark.parametrize(
    ("replicas", "accumulation"),
    [
        (2, 2),
        pytest.param(1, 4, marks=pytest.mark.slow),
        pytest.param(4, 1, marks=pytest.mark.slow),
    ],
)
def test_a_sum_of_gradients_is_that_much_more(samples, replicas, accumulation):
    stock = make_stock(maker(plain, lambda: keras.optimizers.SGD(0.04)))
    expected = learn(stock, samples, UPDATE), state(stock)
    expected[1].popitem()  # the learning rate
    model = make_convoy(
        maker(plain, lambda: keras.optimizers.SGD(0.01)),
        1,
        devices=replicas,
        gradient_accumulation=accumulation,
        reduction="sum",
    )
    actual = learn(model, samples, 8), state(model)
    actual[1].popitem()
    assert_same(actual, expected)


@pytest.mark.parametrize(
    ("replicas", "accumulation"),
    [
        (2, 2),
        pytest.param(2, 1, marks=pytest.mark.slow),
        pytest.param(1, 2, marks=pytest.mark.slow),
    ],
)
def test_a_loss_that_is_a_sum_over_samples(samples, replicas, accumulation):
    def make(steps):
        model = plain()
        loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
        model.compile(keras.optimizers.SGD(0.002), loss, steps_per_execution=steps)
        return model

    stock = make_stock(make)
    x, y = samples
    expected = learn(stock, samples, UPDATE), stock.evaluate(x, y, UPDATE, 0), state(stock)
    model = make_convoy(make, 4, devices=replicas, gradient_accumulation=accumulation)
    actual = (
        learn(model, samples, UPDATE // (replicas * accumulation)),
        model.evaluate(x, y, UPDATE // replicas, 0),
        state(model),
    )
    assert_same(actual, expected)


@pytest.mark.parametrize(
    "bucket", [100, *(pytest.param(size, marks=pytest.mark.slow) for size in (0, 1 << 30))]
)
def test_buckets_change_nothing(samples, bucket):
    compare(maker(plain, OPTIMIZERS["momentum"]), samples, 2, 1, reduction_bucket=bucket)


def test_gradients_add_up_in_the_type_that_is_asked_for(samples):
    compare(maker(plain, OPTIMIZERS["sgd"]), samples, 1, 4, accumulation_dtype="float32")
    make = maker(plain, OPTIMIZERS["sgd"])
    models = []
    for dtype in (None, "float16"):
        models.append(make_convoy(make, 4, gradient_accumulation=4, accumulation_dtype=dtype))
        learn(models[-1], samples, 8)
    pairs = zip(*(model.get_weights() for model in models), strict=True)
    assert 1e-6 < max(np.abs(a - b).max() for a, b in pairs) < 1e-3


@pytest.mark.parametrize("shard", [None, "optimizer", "weights"])
def test_loss_scaling_goes_through_accumulation(samples, shard, monkeypatch):
    """A power of two changes no bit of a float32 gradient, so nothing else may change either."""
    monkeypatch.setattr(shard_state, "REPLICATED_ELEMENTS", 0)
    strategy = {"loss_scale": 1024.0, "shard": shard}
    stock = make_stock(maker(plain, OPTIMIZERS["momentum"]))
    expected = learn(stock, samples, UPDATE), state(stock)
    model = make_convoy(
        maker(plain, OPTIMIZERS["momentum"]), 4, devices=2, gradient_accumulation=4, **strategy
    )
    history = learn(model, samples, 4)
    assert history.pop("loss_scaling_factor") == [1024.0, 1024.0]
    assert history.pop("skipped_updates") == [0, 0]
    assert_same((history, state(model)), expected)


def test_an_overflow_in_one_micro_batch_leaves_out_the_whole_update(samples):
    x = samples[0].copy()
    x[5] = np.inf
    model = make_convoy(
        maker(plain, OPTIMIZERS["sgd"]), 4, devices=2, gradient_accumulation=4, loss_scale=2.0
    )
    before = model.get_weights()
    is_named = pytest.warns(UserWarning, match="loss is NaN .* first in sample 5")
    with np.errstate(all="ignore"), is_named:
        history = learn(model, (x[:UPDATE], samples[1][:UPDATE]), 4, epochs=1)
    assert history["skipped_updates"] == [1]
    assert_same(model.get_weights(), before, exact=True)
    assert int(model.optimizer.iterations.value) == 0
