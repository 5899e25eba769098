"""State that is kept for a model, out of the sight of Keras."""

import keras
from convoy.keras_bridge.model_state import ModelState


class MoreState(ModelState):
    """State with one more attribute."""

    def __init__(self):
        super().__init__()
        self.more = 1


def test_a_model_has_one_state(model):
    assert ModelState.of(model) is ModelState.of(model)


def test_a_further_class_of_state_takes_over_what_is_there(model):
    graph = object()
    ModelState.of(model).graph = graph
    state = MoreState.of(model)
    assert (state.graph, state.more) == (graph, 1)
    assert ModelState.of(model) is state


def test_keras_neither_tracks_nor_saves_it(model, tmp_path):
    before = len(model._flatten_layers()), len(model.variables)
    ModelState.of(model).graph = keras.layers.Dense(1)
    assert (len(model._flatten_layers()), len(model.variables)) == before
    model.save(tmp_path / "model.keras")
    assert "_convoy" not in vars(keras.models.load_model(tmp_path / "model.keras"))
