import json

import keras
import numpy as np
from convoy.checkpoint import callback_state


class Counter(keras.callbacks.Callback):
    def __init__(self, count=0, weights=()):
        super().__init__()
        self.count, self.weights = count, list(weights)

    def get_state(self):
        return {"count": self.count, "weights": self.weights}

    def set_state(self, state):
        self.count, self.weights = state["count"], state["weights"]


def test_states_are_json_and_arrays():
    stopping = keras.callbacks.EarlyStopping("loss")
    stopping.best, stopping.wait = np.float32(0.5), 2
    callbacks = [Counter(np.int64(3), [np.arange(4)]), stopping, keras.callbacks.Callback()]
    states, arrays = callback_state.capture(callbacks)
    assert [state["type"] for state in states] == ["Counter", "EarlyStopping"]
    assert list(arrays) == ["callbacks/0/weights/0"]
    states = json.loads(json.dumps(states))
    fresh = [keras.callbacks.EarlyStopping("loss"), Counter()]
    callback_state.restore(fresh, states, arrays)
    assert (fresh[0].best, fresh[0].wait) == (0.5, 2)
    assert fresh[1].count == 3
    np.testing.assert_array_equal(fresh[1].weights[0], np.arange(4))


def test_each_callback_gets_the_next_state_of_its_type():
    states, arrays = callback_state.capture([Counter(1), Counter(2)])
    fresh = [Counter(), Counter(), Counter()]
    callback_state.restore(fresh, states, arrays)
    assert [callback.count for callback in fresh] == [1, 2, 0]
