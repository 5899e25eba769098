import re

import convoy
import keras
import pytest
from convoy.pipeline import split as split_module
from convoy.pipeline.balance.partition import allowed_cuts
from convoy.pipeline.split import split_by_name
from convoy.pipeline.stages import calls_of, stage_assignment
from keras import layers


def network():
    x = inputs = keras.Input((8,), name="in")
    for number in range(4):
        x = layers.Dense(8, name=f"dense{number}")(x)
    return keras.Model(inputs, x, name="net")


def test_a_stage_begins_with_each_layer_that_is_named():
    assert split_by_name(network(), ["dense1", "dense3"]) == [0, 1, 1, 2]


def test_a_sequential_model_is_cut_too():
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(2, name="a"), layers.Dense(2, name="b")]
    )
    assert split_by_name(model, ["b"]) == [0, 1]


def test_a_layer_that_runs_twice_begins_a_stage_where_it_runs_first():
    shared = layers.Dense(8, name="shared")
    inputs = keras.Input((8,))
    x = shared(layers.Dense(8, name="first")(inputs))
    model = keras.Model(inputs, layers.Dense(8, name="last")(shared(x)))
    assert split_by_name(model, ["shared"]) == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["dense9"], r"'dense9' is not a layer of 'net'.* Did you mean dense\d or dense"),
        (["stem"], r"Its layers are dense0, dense1, dense2, dense3\.$"),
        (["dense0"], "cannot begin with 'dense0': it is the first layer"),
        (["dense2", "dense1"], "'dense1': it does not come after the one before"),
        (["dense2", "dense2"], "'dense2': it does not come after the one before"),
    ],
)
def test_names_that_make_no_stages_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        split_by_name(network(), names)


def test_short_names_are_like_each_other_and_of_many_layers_a_few_are_named():
    names = ["stem", *(f"block{number}" for number in range(20)), "c1", "c2"]
    model = keras.Sequential([keras.Input((2,)), *(layers.Dense(2, name=n) for n in names)])
    with pytest.raises(ValueError, match=r"Did you mean c[12] or c[12]"):
        split_by_name(model, ["c9"])
    shown = "stem, block0, block1, block2, block3, block4, block5, block6"
    with pytest.raises(ValueError, match=rf"Its layers are {shown}, \.\.\.\.$"):
        split_by_name(model, ["xyz"])


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
    stages = dict(zip((c.name for c in calls_of(model)), stage_assignment(model), strict=True))
    assert (stages["inner/one"], stages["two"]) == (0, 1)


def test_the_shares_of_the_stages_are_logged(caplog):
    caplog.set_level("INFO", "convoy.pipeline")
    convoy.split(convoy.prepare(uneven()), stages=2, batch_size=2)
    (record,) = caplog.records
    assert re.fullmatch(
        r"uneven is split into 2 stages with \d+\.\d%, \d+\.\d% of the time", record.getMessage()
    )


def test_a_stage_with_next_to_nothing_to_do_is_warned_of(caplog, monkeypatch):
    def seconds(model, layers, device):
        return [100.0 if layer.stage.calls[0].name == "shared" else 1.0 for layer in layers]

    monkeypatch.setattr(split_module, "measure_layers", seconds)
    convoy.split(convoy.prepare(shared()), stages=2)
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.getMessage() == (
        "The split of 'net' is very uneven: stage 0, which begins with layer 'first', has 0.5 % of "
        "the time, so its device mostly waits. Request fewer stages, or split by names of layers."
    )


def test_auto_is_a_stage_for_every_device():
    with convoy.Strategy(devices=3).scope():
        model = keras.Sequential([keras.Input((4,)), *(layers.Dense(4) for _ in range(6))])
    convoy.split(model, stages="auto")
    assert max(model.get_pipeline_stage_assignment()) == 2


def test_a_layer_that_runs_twice_stays_on_one_device():
    calls = calls_of(shared())
    assert [call.name for call in calls] == ["first", "shared", "between", "shared", "last"]
    assert allowed_cuts(calls) == [1, 4]
    model = convoy.split(convoy.prepare(shared()), stages=3)
    assert stage_assignment(model) == [0, 1, 1, 1, 2]


def test_stages_that_do_not_fit_are_refused(monkeypatch):
    model = convoy.prepare(shared())
    monkeypatch.setattr(split_module.device_choice, "memory", lambda _: 100)
    message = r"cannot be split into 2 stages that fit into the 1e-07 GB of a device"
    with pytest.raises(ValueError, match=message):
        convoy.split(model, stages=2)


@pytest.mark.parametrize(
    ("stages", "settings", "message"),
    [
        (4, {}, r"'net' has 5 layers and 2 possible cuts.*'shared' runs several.*at most 3"),
        (0, {}, "stages=0 is not a number of stages"),
        (2, {"batch_size": 0}, "batch_size=0 is not a number of samples"),
        ("first", {}, r"stages='first' does not define stages. Pass a list"),
        (True, {}, "stages=True does not define stages"),
    ],
)
def test_what_cannot_be_meant_is_refused(stages, settings, message):
    with pytest.raises(ValueError, match=message):
        convoy.split(convoy.prepare(shared()), stages, **settings)


def test_a_model_that_would_not_run_in_stages_is_refused():
    with pytest.raises(ValueError, match=r"'net' is a stock Keras model.*convoy.prepare\(\) first"):
        convoy.split(shared(), ["between"])


def test_layers_that_share_a_weight_are_named():
    first = layers.Dense(8, name="first")

    class Around(layers.Layer):
        def __init__(self, inner, **settings):
            super().__init__(**settings)
            self.inner = inner

        def call(self, x):
            return self.inner(x)

    inputs = keras.Input((8,))
    x = Around(first, name="around")(inputs)
    model = keras.Model(inputs, first(layers.Dense(8, name="between")(x)), name="net")
    message = r"'net' has 3 layers and 0 possible cuts.* 'around' and 'first' share a weight"
    with pytest.raises(ValueError, match=message):
        convoy.split(convoy.prepare(model), stages=2)
