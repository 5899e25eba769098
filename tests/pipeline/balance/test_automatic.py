import re

import convoy
import jax
import keras
import pytest
from convoy.pipeline.assignment import calls_of
from convoy.pipeline.balance import automatic
from convoy.pipeline.balance import layer_costs as measure_module
from convoy.pipeline.balance.automatic import Memory, cuts_that_share_nothing
from convoy.pipeline.balance.layer_costs import Cost, input_shapes, measure
from convoy.pipeline.options import stages_of_model
from keras import layers


def uneven():
    """Two layers that take nearly all of the time, the first of them inside of a nested model."""
    inner = keras.Sequential(
        [keras.Input((48, 48, 32)), layers.ReLU(), layers.Conv2D(32, 5, name="one")], name="inner"
    )
    x = inputs = keras.Input((48, 48, 32))
    for name in ("a", "b"):
        x = layers.ReLU(name=name)(x)
    x = layers.Conv2D(32, 5, name="two", padding="same")(inner(x))
    x = layers.GlobalAveragePooling2D(name="c")(x)
    return keras.Model(inputs, layers.Dense(2, name="d")(x), name="uneven")


def shared():
    layer = layers.Dense(4, name="shared")
    x = inputs = keras.Input((4,))
    x = layers.Dense(4, name="first")(x)
    x = layer(layers.Dense(4, name="between")(layer(x)))
    return keras.Model(inputs, layers.Dense(4, name="last")(x), name="net")


def test_the_slow_layers_get_stages_of_their_own():
    model = convoy.prepare(uneven())
    convoy.split(model, stages=2, batch_size=2)
    stages = dict(zip((c.name for c in calls_of(model)), stages_of_model(model), strict=True))
    assert (stages["inner/one"], stages["two"]) == (0, 1)


def test_a_busy_second_does_not_decide(monkeypatch):
    """Whatever runs first is slow for a while, as on a machine that others use."""
    runs = []

    def program(name, seconds):
        def run():
            runs.append(name)
            now.append(now[-1] + (100.0 if len(runs) < 8 else seconds))
            return ()

        return run, list

    now = [0.0]
    monkeypatch.setattr(measure_module.time, "perf_counter", lambda: now[-1])
    programs = [program(name, seconds) for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    assert measure_module.in_turns(programs) == [1.0, 2.0, 3.0]


def test_the_shares_of_the_stages_are_logged(caplog):
    caplog.set_level("INFO", "convoy.pipeline")
    convoy.split(convoy.prepare(uneven()), stages=2, batch_size=2)
    (record,) = caplog.records
    assert re.fullmatch(
        r"uneven in 2 stages of \d+\.\d%, \d+\.\d% of the time", record.getMessage()
    )


def test_a_stage_with_next_to_nothing_to_do_is_warned_of(caplog, monkeypatch):
    def costs(model, calls, *_):
        return [Cost(100.0 if call.name == "shared" else 1.0, 1, 1, 1, 1) for call in calls]

    monkeypatch.setattr(automatic, "measure", costs)
    convoy.split(convoy.prepare(shared()), stages=2)
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.getMessage() == (
        "The cut of 'net' is very uneven: stage 0, which begins with layer 'first', has 0.5 % of "
        "the time, so its device mostly waits. Ask for fewer stages, or cut by names of layers."
    )


def test_auto_is_a_stage_for_every_device():
    with convoy.Strategy(devices=3).scope():
        model = keras.Sequential([keras.Input((4,)), *(layers.Dense(4) for _ in range(6))])
    convoy.split(model, stages="auto")
    assert max(model.get_pipeline_stage_assignment()) == 2


def test_equal_layers_are_measured_once():
    model = keras.Sequential([keras.Input((6,)), *(layers.Dense(6) for _ in range(4))])
    costs = measure(model, calls_of(model), 8, jax.devices()[0])
    # The first has no gradient for its input; the last sends nothing on but the model's output.
    assert costs[1].seconds == costs[2].seconds == costs[3].seconds
    assert {(c.weights, c.statistics, c.activations, c.live) for c in costs} == {
        (4 * (36 + 6), 0, 4 * 8 * 6, 4 * 8 * 6)
    }


def test_what_is_live_counts_skips_but_not_the_inputs():
    inputs = keras.Input((2,))
    one = layers.Dense(2)(inputs)
    two = layers.Dense(4)(one)
    model = keras.Model(inputs, layers.Concatenate()([two, one, inputs]))
    costs = measure(model, calls_of(model), 3, jax.devices()[0])
    assert [cost.live for cost in costs] == [4 * 3 * n for n in (2, 6, 8)]


def test_a_layer_that_runs_twice_stays_on_one_device():
    calls = calls_of(shared())
    assert [call.name for call in calls] == ["first", "shared", "between", "shared", "last"]
    assert cuts_that_share_nothing(calls) == [1, 4]
    model = convoy.split(convoy.prepare(shared()), stages=3)
    assert stages_of_model(model) == [0, 1, 1, 1, 2]


def test_a_stage_holds_as_many_micro_batches_as_stages_follow():
    memory = Memory([Cost(1, 10, 5, 100, 0)] * 3, slots=2)
    assert memory.bytes(0, 2, after=1) == 2 * (10 * 4 + 5) + 2 * 200
    assert memory.bytes(2, 3, after=0) == 10 * 4 + 5 + 100


def test_stages_that_do_not_fit_are_refused(monkeypatch):
    model = convoy.prepare(shared())
    monkeypatch.setattr(automatic.device_choice, "memory", lambda _: 100)
    with pytest.raises(ValueError, match=r"cut into 2 stages that fit into the 1e-07 GB of a dev"):
        convoy.split(model, stages=2)


@pytest.mark.parametrize(
    ("stages", "settings", "message"),
    [
        (4, {}, r"'net' has 5 layers and 2 places to cut.*'shared' runs several.*at most 3"),
        (0, {}, "stages=0 is not a number of stages"),
        (2, {"batch_size": 0}, "batch_size=0 is not a number of samples"),
        ("first", {}, r"stages='first' says not where to cut. Pass a list"),
        (True, {}, "stages=True says not where to cut"),
    ],
)
def test_what_cannot_be_meant_is_refused(stages, settings, message):
    with pytest.raises(ValueError, match=message):
        convoy.split(convoy.prepare(shared()), stages, **settings)


def test_a_model_that_would_not_run_in_stages_is_refused():
    with pytest.raises(ValueError, match=r"'net' is a stock Keras model.*convoy.prepare\(\) first"):
        convoy.split(shared(), ["between"])


def test_an_input_of_numbers_in_64_bits_is_timed_in_those_of_the_device():
    inputs = keras.Input((), dtype="int64")
    shapes = input_shapes(keras.Model(inputs, layers.Embedding(4, 2)(inputs)), 8)
    assert [(shape.shape, shape.dtype) for shape in shapes.values()] == [((8,), "int32")]


def test_an_input_of_unknown_size_is_refused():
    inputs = keras.Input((None, None, 3), name="image")
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(2, 3)(inputs))
    with pytest.raises(ValueError, match=r"Input 'image' .* has shape \(None, None, None, 3\)"):
        convoy.split(convoy.prepare(keras.Model(inputs, x)), stages=2)
