import keras
import numpy as np
import pytest
from convoy.train.fine_tuning import freeze, load_initial_weights


def network(classes=4, filters=3):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(filters, 3, name="conv"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(classes, name="head"),
        ],
        name="network",
    )


@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_all_layers_that_fit_are_loaded_and_the_head_is_new(tmp_path, ending):
    source, target = network(classes=7), network()
    path = tmp_path / f"source{ending}"
    source.get_layer("norm").set_weights([np.full(3, value) for value in (2.0, 3.0, 4.0, 5.0)])
    source.save(path) if ending == ".keras" else source.save_weights(path)
    head = target.get_layer("head").get_weights()
    message = load_initial_weights(target, path)
    assert message == f"2 of 3 layers have the weights of {path}; random: head"
    for name in ("conv", "norm"):
        pairs = zip(source.get_layer(name).weights, target.get_layer(name).weights, strict=True)
        assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)
    assert all(map(np.array_equal, target.get_layer("head").get_weights(), head))


def test_a_file_that_fits_completely(tmp_path):
    source, path = network(), tmp_path / "source.keras"
    source.get_layer("norm").set_weights([np.full(3, value) for value in (2.0, 3.0, 4.0, 5.0)])
    source.get_layer("head").bias.assign(np.ones(4))
    source.save(path)
    assert load_initial_weights(network(), path) == f"3 of 3 layers have the weights of {path}"


def test_files_of_other_models_are_refused(tmp_path):
    path = tmp_path / "other.keras"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="other")]).save(path)
    with pytest.raises(ValueError, match="has no weights for the layers of network"):
        load_initial_weights(network(), path)


@pytest.mark.parametrize("name", ["broken.keras", "broken.h5", "broken.weights.h5", "broken.txt"])
def test_files_that_cannot_be_read_are_refused(tmp_path, name):
    (tmp_path / name).write_text("nothing")
    with pytest.raises(ValueError, match=f"{name} cannot be read: .* Pass a .keras"):
        load_initial_weights(network(), tmp_path / name)
    with pytest.raises(ValueError, match=r"nowhere.keras: there is no such file\. Pass its path"):
        load_initial_weights(network(), tmp_path / "nowhere.keras")


def test_layers_before_the_first_trained_one_do_not_change(rng):
    model = network()
    freeze(model, "head")
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.fit(rng.normal(size=(8, 8, 8, 1)), rng.normal(size=(8, 4)), verbose=0)
    changed = [not np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True)]
    assert changed == [False] * 6 + [True] * 2


def test_a_wrong_layer_is_refused():
    with pytest.raises(ValueError, match=r"network has no such layer. Did you mean head"):
        freeze(network(), "haed")
    with pytest.raises(ValueError, match=r"such layer. Its last layers are .*flatten, head"):
        freeze(network(), "zzz")
    with pytest.raises(ValueError, match=r"no layer before it has weights. Pass a later layer"):
        freeze(network(), "conv")
