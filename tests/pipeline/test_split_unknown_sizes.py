"""Models with inputs of unknown length are cut by the shapes of a sample or of the first batch."""

import convoy
import keras
import numpy as np
import pytest
from convoy import keras_bridge
from convoy.engine.prepared_model import PreparedModel
from convoy.pipeline import split as split_module
from convoy.pipeline.balance.layer_costs import layer_sizes
from convoy.pipeline.stages import calls_of
from keras import layers
from tests.equivalence.side_by_side import assert_same, make_convoy, make_stock, state

pytestmark = pytest.mark.integration
LENGTH, SAMPLES = 7, 16


def reader(steps=1):
    """A model of two inputs, sentences and their masks, of any length."""
    words = keras.Input((None,), dtype="int32", name="words")
    mask = keras.Input((None,), name="mask")
    x = layers.Embedding(11, 6, name="embedding")(words)
    x = layers.Conv1D(6, 3, padding="same", activation="tanh", name="convolution")(x)
    x = layers.Multiply(name="masked")([x, layers.Reshape((-1, 1), name="column")(mask)])
    x = layers.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model({"words": words, "mask": mask}, layers.Dense(2, name="head")(x), name="net")
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=steps)
    return model


@pytest.fixture(scope="module")
def sentences():
    rng = np.random.default_rng(5)
    words = rng.integers(0, 11, (SAMPLES, LENGTH)).astype("int32")
    mask = (rng.uniform(size=words.shape) < 0.8).astype("float32")
    return {"words": words, "mask": mask}, rng.normal(size=(SAMPLES, 2)).astype("float32")


@pytest.fixture
def lengths(monkeypatch):
    """Lists the lengths for which layers are timed; every layer takes as long as any other."""
    found = []

    def seconds(model, sizes, device):
        found.append(sizes[0].inputs[next(iter(sizes[0].inputs))].shape[1])
        return [1.0] * len(sizes)

    monkeypatch.setattr(split_module, "measure_layers", seconds)
    return found


def staged(**settings):
    model = make_convoy(reader, 2, devices=2, gradient_accumulation=2)
    return convoy.split(model, stages=2, batch_size=4, **settings)


def batches_of(data):
    x, y = data
    for start in range(0, SAMPLES, 4):
        rows = slice(start, start + 4)
        yield {name: part[rows] for name, part in x.items()}, y[rows]


class Batched(keras.utils.PyDataset):
    def __init__(self, data):
        super().__init__()
        self.batches = list(batches_of(data))

    @property
    def num_batches(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def test_a_sample_gives_the_sizes(sentences, lengths):
    x, _ = sentences
    model = staged(sample=x)
    assert lengths == [LENGTH]
    assert max(model.get_pipeline_stage_assignment()) == 1


def test_without_a_sample_the_cut_waits_for_data(sentences, lengths):
    model = staged()
    assert lengths == []
    assert model.get_pipeline_stage_assignment() is None
    x, y = sentences
    model.fit(x, y, batch_size=4, verbose=0)
    assert lengths == [LENGTH]
    assert max(model.get_pipeline_stage_assignment()) == 1
    model.fit(x, y, batch_size=4, verbose=0)
    assert lengths == [LENGTH]


@pytest.mark.parametrize("given", ["sample", "first batch"])
def test_training_is_that_of_stock_keras(sentences, given):
    x, y = sentences

    def learn(model, batch_size):
        history = model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0).history
        return history, model.predict(x, batch_size=4, verbose=0), state(model)

    expected = learn(make_stock(reader), 8)
    assert_same(learn(staged(**({"sample": x} if given == "sample" else {})), 4), expected)


@pytest.mark.parametrize("kind", ["generator", "dataset"])
def test_no_batch_of_other_data_is_lost(sentences, lengths, kind):
    def source():
        return batches_of(sentences) if kind == "generator" else Batched(sentences)

    def learn(model):
        return model.fit(source(), shuffle=False, verbose=0).history, state(model)

    by_name = make_convoy(reader, 2, devices=2, gradient_accumulation=2)
    expected = learn(convoy.split(by_name, ["masked"]))
    model = staged()
    assert_same(learn(model)[1], expected[1])
    assert lengths == [LENGTH]


def test_batches_of_other_lengths_run_in_the_same_stages(sentences, lengths):
    x, y = sentences

    def learn(model, batch_size):
        losses = []
        for length in (LENGTH, 5, 3):
            part = {name: values[:, :length] for name, values in x.items()}
            history = model.fit(part, y, batch_size=batch_size, shuffle=False, verbose=0).history
            losses.append(history["loss"])
        return losses, state(model)

    assert_same(learn(staged(), 4), learn(make_stock(reader), 8))
    assert lengths == [LENGTH]


@pytest.mark.parametrize("method", ["evaluate", "predict", "train_on_batch"])
def test_any_method_that_receives_data_cuts_the_model(sentences, lengths, method):
    x, y = sentences
    model = staged()
    arguments = {"predict": (x,)}.get(method, (x, y))
    getattr(model, method)(*arguments)
    assert max(model.get_pipeline_stage_assignment()) == 1


def test_another_assignment_replaces_a_cut_that_waits(sentences, lengths):
    model = staged()
    convoy.split(model, ["head"])
    model.fit(*sentences, batch_size=4, verbose=0)
    assert lengths == []
    assert sum(model.get_pipeline_stage_assignment()) == 1


def test_a_clone_waits_as_the_model_does(sentences, lengths):
    clone = keras.models.clone_model(staged())
    assert PreparedModel.of(clone).deferred_split == (2, 4)


def test_too_many_stages_are_refused_before_data_arrives():
    model = convoy.prepare(reader())
    with pytest.raises(ValueError, match=r"too few for 20 stages"):
        convoy.split(model, stages=20)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"words": np.zeros((1, 3)), "mask": np.zeros((1, 3, 2))}, "Input 'mask' received samples"),
        ({"words": np.zeros((1, 3))}, "mask"),
    ],
)
def test_a_sample_that_the_model_does_not_take_is_refused(sample, message):
    with pytest.raises(ValueError, match=message):
        staged(sample=sample)


def test_costs_of_unknown_sizes_cannot_be_computed():
    model = reader()
    with pytest.raises(ValueError, match=r"Input '(words|mask)' of 'net' has shape \(None, None\)"):
        layer_sizes(model, calls_of(model), 4)


def test_the_first_inputs_of_every_kind_of_data(sentences):
    x, _ = sentences
    assert keras_bridge.first_inputs(x) == (x, x)
    inputs, rest = keras_bridge.first_inputs(batches_of(sentences))
    np.testing.assert_array_equal(inputs["words"], x["words"][:4])
    assert len(list(rest)) == SAMPLES // 4
    dataset = Batched(sentences)
    assert keras_bridge.first_inputs(dataset) == (dataset[0][0], dataset)
