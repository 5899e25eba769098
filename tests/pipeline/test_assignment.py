import keras
import pytest
from convoy.pipeline.assignment import calls_of, check_assignment, split_by_name
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


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([0, 0, 1], "3 stages were given for 4 layers"),
        ([0, None, 1, 1], "'dense1' has no stage, but others have"),
        ([0, -1, 1, 1], "'dense1' has stage -1. Number stages from 0"),
        ([0, 1, 0, 1], "'dense2' of stage 0 reads what 'dense1' of stage 1 computes"),
        ([0, 0, 2, 2], "Stage 1 has no layer, but layer 'dense2' has stage 2"),
    ],
)
def test_an_assignment_that_cannot_be_run_is_refused(stages, message):
    with pytest.raises(ValueError, match=message):
        check_assignment(calls_of(network()), stages)
