"""The weights after training do not depend on the split, the schedule or the mapping."""

from types import SimpleNamespace

import convoy
import keras
import numpy as np
import pytest
from convoy.engine import progress
from convoy.pipeline import NAMES, Schedule, config
from convoy.pipeline.runner import training
from convoy.pipeline.runner.training import TrainingCall
from convoy.pipeline.stages import calls_of
from keras import layers
from tests.equivalence.side_by_side import assert_same, make_convoy, make_stock, state

pytestmark = pytest.mark.integration

UPDATE, UPDATES = 16, 3


class Penalty(layers.Layer):
    def call(self, inputs):
        self.add_loss(0.01 * keras.ops.mean(inputs**2))
        return inputs


def network(optimizer=None):
    """A skip over two stages, a loss of a layer's own, a regulariser, two outputs."""

    def make(steps):
        inputs = keras.Input((6, 6, 2), name="image")
        x = first = layers.Conv2D(4, 3, padding="same", activation="tanh", name="a")(inputs)
        x = layers.Conv2D(4, 3, padding="same", name="b", kernel_regularizer="l2")(x)
        x = Penalty(name="c")(x)
        x = layers.Activation("tanh", name="d")(x)
        x = layers.Add(name="e")([x, first])
        x = layers.Flatten(name="f")(x)
        one = layers.Dense(3, "softmax", name="one")(x)
        x = layers.Dense(8, "tanh", name="g")(x)
        model = keras.Model(inputs, [one, layers.Dense(3, "softmax", name="two")(x)])
        model.compile(
            (optimizer or (lambda: keras.optimizers.SGD(0.05, momentum=0.9)))(),
            ["sparse_categorical_crossentropy"] * 2,
            metrics=[["accuracy"], []],
            steps_per_execution=steps,
        )
        return model

    return make


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, UPDATE * UPDATES).astype("int32")
    x = rng.normal(size=(len(y), 6, 6, 2)).astype("float32")
    x[np.arange(len(y)), y, y] += 2.0
    return x, y


def learn(model, samples, batch_size):
    x, y = samples
    return model.fit(x, [y, y], batch_size=batch_size, epochs=2, verbose=0).history


def compare(make, samples, names, replicas=1, accumulation=4, budget=None, **options):
    stock = make_stock(make)
    expected = learn(stock, samples, UPDATE), state(stock)
    devices = replicas * (1 + max(options.get("device_mapping") or [len(names)]))
    model = make_convoy(
        make,
        UPDATES * accumulation,
        devices=devices,
        gradient_accumulation=accumulation,
        data_budget=budget,
    )
    convoy.split(model, names)
    model.set_pipelining_options(**options)
    actual = learn(model, samples, UPDATE // (replicas * accumulation)), state(model)
    assert_same(actual, expected)
    return model


def train_both(make, data, devices, assignment, **options):
    """Train a model in stages, and under stock Keras; both must learn the same."""

    def train(model, batch_size):
        return model.fit(data, data, batch_size=batch_size, verbose=0).history, state(model)

    model = make_convoy(make, 4, devices=devices, gradient_accumulation=4)
    model.set_pipeline_stage_assignment(assignment)
    model.set_pipelining_options(**options)
    assert_same(train(model, 2), train(make_stock(make), 8))


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.01, 0.001])
    ),
    "average": lambda: keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9),
}
CUTS = {2: ["d"], 3: ["b", "f"], 4: ["b", "e", "g"]}


@pytest.mark.parametrize("schedule", NAMES)
@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_training_is_that_of_stock_keras(samples, schedule, stages):
    compare(network(), samples, CUTS[stages], schedule=schedule)


def test_fewer_micro_batches_than_devices_are_warned_of_once(samples, caplog):
    config._warn_of_bubble.cache_clear()
    for accumulation in (1, 1, 2):
        model = make_convoy(network(), 2, devices=2, gradient_accumulation=accumulation)
        convoy.split(model, CUTS[2])
        learn(model, samples, UPDATE // 2)
    assert [record.getMessage() for record in caplog.records] == [
        "A pipeline on 2 devices trains with 1 micro-batch per weight update, so its devices "
        "mostly wait for each other. Pass gradient_accumulation=8 or more, with a smaller "
        "batch_size."
    ]


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2, 16])
def test_any_number_of_micro_batches(samples, accumulation):
    compare(network(), samples, CUTS[2], accumulation=accumulation, schedule="zero-bubble")


@pytest.mark.parametrize("schedule", ["zero-bubble", pytest.param("gpipe", marks=pytest.mark.slow)])
def test_two_replicas_of_a_pipeline(samples, schedule):
    compare(network(), samples, CUTS[2], replicas=2, accumulation=2, schedule=schedule)


def test_forward_passes_do_not_run_far_ahead_of_the_backward_passes(samples, monkeypatch):
    """A CPU would start them as soon as there is an input, and hold the activations of all."""
    waited = []
    wait = TrainingCall._wait_before

    def observed(call, action, replica):
        wait(call, action, replica)
        unfinished = [not end.is_ready() for end in call._backward_ends[replica, action.stage]]
        waited.append(sum(unfinished))

    monkeypatch.setattr(TrainingCall, "_wait_before", observed)
    compare(network(), samples, CUTS[2], accumulation=16, schedule="gpipe")
    limit = training.MICRO_BATCHES_AHEAD * 2
    assert max(waited) <= limit + 1


def test_a_device_call_reports_its_micro_batches(samples):
    reports = []
    observer = SimpleNamespace(advance=reports.append, note_compilation=lambda: None)
    with progress.reported_to(observer):
        compare(network(), samples, CUTS[2], replicas=2, accumulation=2)
    # Two epochs of three updates; the last ones may not be ready when the last is dispatched.
    assert 0 < sum(reports) <= 2 * UPDATES * 2 * 2
    stop_count = len(reports)
    compare(network(), samples, CUTS[2])
    assert len(reports) == stop_count


def test_data_that_is_streamed(samples):
    compare(network(), samples, CUTS[3], budget=0)


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zero-bubble", marks=pytest.mark.slow)])
def test_stages_that_recompute(samples, schedule):
    compare(network(), samples, CUTS[3], schedule=schedule, activation_checkpointing=True)


@pytest.mark.parametrize(
    "mapping",
    [
        [0, 1, 0],
        pytest.param([0, 0, 1], marks=pytest.mark.slow),
        pytest.param([0, 0, 0], marks=pytest.mark.slow),
    ],
)
def test_stages_that_share_a_device(samples, mapping):
    compare(network(), samples, CUTS[3], device_mapping=mapping)


@pytest.mark.slow
def test_a_schedule_of_ones_own(samples):
    text = "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n"
    compare(network(), samples, CUTS[2], schedule=Schedule.from_csv(text))


@pytest.mark.parametrize(
    "optimizer",
    [
        "clipped",
        pytest.param("adam", marks=pytest.mark.slow),
        pytest.param("schedule", marks=pytest.mark.slow),
        pytest.param("average", marks=pytest.mark.slow),
    ],
)
def test_every_optimizer(samples, optimizer):
    compare(network(OPTIMIZERS[optimizer]), samples, CUTS[3])


def test_a_device_without_weights_counts_updates_too(rng):
    def make(steps):
        x = inputs = keras.Input((4,))
        x = layers.Dense(3, name="dense")(x)
        model = keras.Model(inputs, layers.Softmax(name="softmax")(x))
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        model.compile(
            keras.optimizers.SGD(rate), "sparse_categorical_crossentropy", steps_per_execution=steps
        )
        return model

    x, y = rng.normal(size=(16, 4)).astype("float32"), np.arange(16, dtype="int32") % 3
    stock = make_stock(make)
    stock.fit(x, y, batch_size=8, epochs=2, verbose=0)
    model = make_convoy(make, 2, devices=2, gradient_accumulation=2)
    convoy.split(model, ["softmax"])
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    assert_same(state(model), state(stock))


def test_weights_live_on_their_stages_devices_only(samples):
    model = compare(network(), samples, CUTS[3])
    devices = [{v.value.devices().pop().id for v in model.get_layer(n).weights} for n in "abg"]
    assert devices == [{0}, {1}, {2}]


def test_evaluate_and_predict_go_on_after_it(samples):
    make = network()
    stock = make_stock(make)
    learn(stock, samples, UPDATE)
    model = compare(make, samples, CUTS[2])
    x, y = samples
    assert_same(model.evaluate(x, [y, y], verbose=0), stock.evaluate(x, [y, y], verbose=0))
    assert_same(model.predict(x, verbose=0), stock.predict(x, verbose=0))
    histories = []
    for each, batch_size in ((model, 4), (stock, UPDATE)):
        keras.utils.set_random_seed(1)  # the order of samples
        histories.append(learn(each, samples, batch_size))
    assert_same(*histories)


@pytest.mark.slow
def test_batch_norm_and_dropout_are_those_of_the_whole_model(rng):
    x = rng.normal(size=(32, 8, 8, 2)).astype("float32")
    y = rng.integers(0, 3, 32).astype("int32")

    def make(steps):
        model = keras.Sequential(
            [
                keras.Input((8, 8, 2)),
                layers.Conv2D(4, 3, use_bias=False),
                layers.BatchNormalization(momentum=0.8, name="norm"),
                layers.ReLU(),
                layers.Dropout(0.3, seed=3),
                layers.Conv2D(4, 3, use_bias=False, name="second"),
                layers.BatchNormalization(momentum=0.8),
                layers.ReLU(),
                layers.Dropout(0.3, seed=4),
                layers.GlobalAveragePooling2D(),
                layers.Dense(3, "softmax"),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=steps,
        )
        return model

    def train(names, **strategy):
        model = make_convoy(make, 4, gradient_accumulation=4, **strategy)
        if names:
            convoy.split(model, names)
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history
        return history, state(model)

    assert_same(train(["norm", "second"], devices=3), train([], devices=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            r"in stages on 3 devices, but the strategy has 2, so none for the stage that begins "
            "with layer 'f'",
        ),
        (
            {"device_mapping": [0, 1]},
            r"device_mapping=\[0, 1\] has 2 entries, but .* has 3 stages: none is for stage 2, "
            "which begins with layer 'f'",
        ),
        ({"device_mapping": [0, 1, 0, 1]}, "has 4 entries, but the model has 3 stages"),
        ({"device_mapping": [0, 2, 0]}, "leaves out a device"),
        (
            {"schedule": Schedule.from_csv("0F0,0B0\n1F0,1B0\n")},
            "is for 2 stages and 1 micro-batches, but the model has 3 stages and",
        ),
    ],
)
@pytest.mark.parametrize("method", ["fit", "predict"])
def test_what_does_not_fit_is_refused(samples, options, message, method):
    model = make_convoy(network(), devices=2, gradient_accumulation=3)
    convoy.split(model, CUTS[3])
    model.set_pipelining_options(**options)
    x, y = samples
    arguments = (x, [y, y]) if method == "fit" else (x,)
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(*arguments, verbose=0)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("round-robin", "schedule='round-robin' is unknown. Pass one of sequential, gpipe"),
        (
            Schedule.from_csv("0F0\n1F0,1B0\n"),
            "micro-batch 0 of stage 0 is missing",
        ),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused_at_once(schedule, message):
    model = make_convoy(network(), devices=2)
    with pytest.raises(ValueError, match=message):
        model.set_pipelining_options(schedule=schedule)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            {"activation_checkpointing": ["a"]},
            "activation_checkpointing is not supported with pipeline stages. Use set_pipelining_o",
        ),
        ({"shard": "optimizer"}, "shard='optimizer' is not supported with pipeline"),
        ({"shard": "weights"}, "shard='weights' is not supported with pipeline"),
        ({"batch_norm_group": 2}, "batch_norm_group is not supported with pipeline stages"),
    ],
)
def test_what_stages_do_not_have_is_refused(samples, strategy, message):
    model = make_convoy(network(), devices=4, **strategy)
    convoy.split(model, CUTS[2])
    with pytest.raises(ValueError, match=message):
        learn(model, samples, 4)


def test_a_model_with_a_loss_of_its_own_is_refused(samples):
    class Own(keras.Model):
        def compute_loss(self, *args, **kwargs):
            return super().compute_loss(*args, **kwargs)

    def make(steps):
        x = inputs = keras.Input((6, 6, 2))
        x = layers.Dense(2, name="b")(layers.Flatten()(x))
        model = Own(inputs, x)
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    model = convoy.split(make_convoy(make, devices=2), ["b"])
    x, _ = samples
    with pytest.raises(ValueError, match="Own overrides compute_loss, which needs all outputs"):
        model.fit(x, x[:, 0, 0], verbose=0)


def test_stages_are_shown_and_reset(capsys):
    model = make_convoy(network(), devices=2)
    model.set_pipeline_stage_assignment([0, 0, 0, 1, 1, 1, 1, 1, 1])
    assert model.get_pipeline_stage_assignment()[2:4] == [0, 1]
    model.print_pipeline_stage_assignment_summary()
    assert "stage 1  Activation               d" in capsys.readouterr().out
    model.reset_pipeline_stage_assignment()
    assert model.get_pipeline_stage_assignment() is None


def test_a_layer_in_stages_on_two_devices_is_refused(rng):
    shared = layers.Dense(4, name="shared")
    inputs = keras.Input((4,))
    x = layers.Dense(4, name="between")(shared(inputs))
    with convoy.Strategy(devices=2).scope():
        model = keras.Model(inputs, shared(x))
    model.compile("sgd", "mse")
    model.set_pipeline_stage_assignment([0, 0, 1])
    data = rng.normal(size=(8, 4)).astype("float32")
    with pytest.raises(ValueError, match=r"'shared/kernel' runs in stages on devices 0 and 1"):
        model.fit(data, data, verbose=0)


def test_whole_numbers_go_from_stage_to_stage(rng):
    data = rng.normal(size=(16, 6)).astype("float32")

    def make(steps):
        inputs = keras.Input((6,))
        x = layers.Dense(4, "tanh", name="a")(inputs)
        largest = keras.ops.argmax(x, axis=-1)
        x = layers.Dense(4, "tanh", name="b")(x)
        x = layers.Concatenate(name="c")([x, keras.ops.one_hot(largest, 4)])
        model = keras.Model(inputs, layers.Dense(6, name="d")(x))
        model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=steps)
        return model

    names = [call.name for call in calls_of(make_stock(make))]
    assignment = [{"a": 0, "argmax": 0, "b": 1}.get(name, 2) for name in names]
    train_both(make, data, 3, assignment, schedule="zero-bubble", activation_checkpointing=True)


def test_a_mask_that_would_be_lost_is_refused(rng):
    def make(steps):
        x = inputs = keras.Input((5,), dtype="int32")
        x = layers.Embedding(9, 4, mask_zero=True, name="words")(x)
        x = layers.GlobalAveragePooling1D(name="mean")(x)
        model = keras.Model(inputs, layers.Dense(1)(x))
        model.compile("sgd", "mse", steps_per_execution=steps)
        return model

    model = convoy.split(make_convoy(make, devices=2), ["mean"])
    x = rng.integers(0, 9, (8, 5)).astype("int32")
    with pytest.raises(ValueError, match="'words' of stage 0 passes a mask to a later stage"):
        model.fit(x, x[:, 0].astype("float32"), verbose=0)


@pytest.mark.parametrize("schedule", ["zero-bubble", pytest.param("1f1b", marks=pytest.mark.slow)])
def test_a_layer_that_runs_in_two_stages_of_one_device(rng, schedule):
    def make(steps):
        shared = layers.Dense(4, "tanh", kernel_regularizer="l2")
        x = inputs = keras.Input((4,))
        x = shared(layers.Dense(4, "tanh")(shared(x)))
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=steps)
        return model

    data = rng.normal(size=(16, 4)).astype("float32")
    train_both(make, data, 2, [0, 1, 2], device_mapping=[0, 1, 0], schedule=schedule)


def test_nested_models_whose_layers_have_the_same_names(rng):
    def make(steps):
        x = inputs = keras.Input((4,))
        for name in ("first", "second"):
            inner = keras.Input((4,))
            y = layers.Dense(6, "tanh", name="one")(inner)
            x = keras.Model(inner, layers.Dense(4, name="two")(y), name=name)(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=steps)
        return model

    data = rng.normal(size=(16, 4)).astype("float32")
    train_both(make, data, 3, [0, 1, 1, 2])
