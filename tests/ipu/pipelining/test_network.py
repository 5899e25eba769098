import keras
import numpy as np
import pytest
from convoy.ipu.ops.pipelining_ops import (
    OptimizerFunctionOutput,
    PipelineSchedule,
    pipeline,
)
from tests.ipu.pipelining.lines import RATE, START, Infeed, Line, Outfeed, X

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("method", "factor"), [("sum", 4), ("MEAN", 1), ("running_mean", 1)])
def test_gradients_of_a_line(configure, method, factor):
    configure(2)
    line = Line(y=2.0)
    assert line.train(repeat_count=2, reduction_method=method) is None
    step = factor * RATE * X
    assert line.weight == pytest.approx(START - 2 * step)
    (losses,) = line.outfeed.dequeue()
    expected = [X * START + 2] * 4 + [X * (START - step) + 2] * 4
    assert losses.tolist() == pytest.approx(expected)
    assert line.optimizer.iterations == 2


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_trains_as_stock_keras_does(configure, rng, schedule, recomputes):
    configure(4, lambda config: setattr(config, "allow_recompute", recomputes))
    x = rng.standard_normal((4 * 6 * 2, 5)).astype("float32")
    y = rng.integers(0, 3, len(x)).astype("int32")
    layers = [keras.layers.Dense(7, "relu"), keras.layers.Dense(6, "tanh"), keras.layers.Dense(3)]
    stock = keras.Sequential([keras.Input((5,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    before = stock.get_weights()
    stock.compile(keras.optimizers.Adam(0.01), loss)
    stock.fit(x, y, batch_size=24, shuffle=False, verbose=0)
    expected = stock.get_weights()
    stock.set_weights(before)
    outfeed = Outfeed()
    pipeline(
        [
            lambda x, labels: (layers[0](x), labels),
            lambda x, labels: (layers[1](x), labels),
            lambda x, labels: (loss(labels, layers[2](x)), layers[2](x)),
        ],
        6,
        repeat_count=2,
        infeed_queue=Infeed([(x[i : i + 4], y[i : i + 4]) for i in range(0, len(x), 4)]),
        outfeed_queue=outfeed,
        optimizer_function=lambda loss, _: OptimizerFunctionOutput(
            keras.optimizers.Adam(0.01), loss
        ),
        pipeline_schedule=schedule,
        reduction_method="mean",
    )
    for own, wanted in zip(stock.get_weights(), expected, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-6)
    losses, logits = outfeed.dequeue()
    assert losses.shape == (12,)
    assert logits.shape == (12, 4, 3)


def test_a_loss_of_several_numbers_counts_as_their_sum(configure):
    configure(2)
    line = Line()
    line.infeed = Infeed([(np.full((3, 1), X, "float32"), np.float32(0))] * 4)
    line.train(computational_stages=[line.first, lambda product, y: product])
    assert line.weight == pytest.approx(START - 4 * 3 * RATE * X)


def test_more_micro_batches_by_batch_serialization(configure):
    configure(1)
    line = Line()
    line.train(3, batch_serialization_iterations=2)
    assert line.weight == pytest.approx(START - 6 * RATE * X)


def test_a_count_may_be_an_array(configure):
    configure(2)
    line = Line()
    line.train(np.int32(4))
    assert line.weight == pytest.approx(START - 4 * RATE * X)
