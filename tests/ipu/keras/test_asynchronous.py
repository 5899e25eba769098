import keras
import numpy as np
import pytest
from convoy import ipu


class Steps(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(batch)

    on_test_batch_end = on_predict_batch_end = on_train_batch_end


def network():
    inputs = keras.Input((2,))
    with ipu.keras.PipelineStage(0):
        x = keras.layers.Dense(2)(inputs)
    with ipu.keras.PipelineStage(1):
        x = keras.layers.Dense(1)(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize("accumulate_outfeed", [False, True])
def test_stages_whose_results_are_accumulated_tell_of_executions(configure, accumulate_outfeed):
    configure(2)
    x, y = np.ones((16, 2), "float32"), np.zeros((16, 1), "float32")
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = network()
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=8)
        model.set_pipelining_options(4, accumulate_outfeed=accumulate_outfeed)
        model.set_asynchronous_callbacks(True)
        heard = Steps()
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[heard])
        assert heard.steps == ([7] if accumulate_outfeed else list(range(8)))
        heard = Steps()
        model.evaluate(x, y, batch_size=2, verbose=0, callbacks=[heard])
        assert heard.steps == ([7] if accumulate_outfeed else list(range(8)))
        heard = Steps()
        model.predict(x, batch_size=2, verbose=0, callbacks=[heard])
        assert heard.steps == list(range(8))
        model.set_asynchronous_callbacks(False)
        heard = Steps()
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[heard])
        assert heard.steps == [7]


def test_replicas_are_told_of_one_by_one(configure):
    configure(2)
    x, y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")
    with ipu.ipu_strategy.IPUStrategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2)
        model.set_asynchronous_callbacks(True)
        heard = Steps()
        model.fit(x, y, batch_size=2, verbose=0, callbacks=[heard])
    assert heard.steps == [0, 0, 1, 1]
