import keras
import numpy as np
import pytest
from convoy.ipu.ops.pipelining_ops import (
    pipeline,
)
from tests.ipu.pipelining.lines import (
    RATE,
    START,
    Line,
    Mode,
    Outfeed,
    X,
    add_one,
    computed,
    double,
    identity,
    numbers,
)

pytestmark = pytest.mark.integration


def test_an_outfeed_that_keeps_the_last(configure):
    configure(2)
    outfeed = Outfeed(Mode.LAST)
    pipeline([double, add_one], 4, infeed_queue=numbers(), outfeed_queue=outfeed)
    assert outfeed.dequeue() == 7
    line = Line()
    line.outfeed = outfeed
    line.train(repeat_count=2)
    assert outfeed.dequeue() == [X * (START - 4 * RATE * X)]


def test_accumulated_outputs_are_one_for_each_execution(configure):
    configure(2)
    (found,) = computed([double, identity], repeat_count=2, accumulate_outfeed=True)
    assert found.tolist() == [2, 10]
    line = Line()
    line.train(repeat_count=2, accumulate_outfeed=True, accumulate_outfeed_dtype="float16")
    (losses,) = line.outfeed.dequeue()
    assert losses.tolist() == [4 * X, 4 * X * (START - 4 * RATE * X)]
    assert losses.dtype == np.float16
    line.train(
        accumulate_outfeed=True, accumulate_outfeed_dtype=lambda tensor: "int32", outfeed_loss=True
    )
    assert line.outfeed.dequeue().dtype == np.int32


def test_the_loss_alone_or_a_choice_of_outputs(configure):
    configure(2)
    line = Line()

    def second(product, y):
        return keras.ops.mean(product) + y, product, y

    stages = [line.first, second]
    line.train(computational_stages=stages, outfeed_loss=True)
    assert line.outfeed.dequeue().tolist() == [X * START] * 4
    line.train(computational_stages=stages, outfeed_mask=[True, False, False])
    products, ys = line.outfeed.dequeue()
    assert products.shape == (4, 1, 1)
    assert ys.tolist() == [0] * 4
    line.train(computational_stages=stages, outfeed_mask=[True] * 3, outfeed_queue=None)
    assert line.weight == pytest.approx(START - 3 * 4 * RATE * X)
    with pytest.raises(
        ValueError, match="outfeed_mask has 1 entries, but the last stage returns 3"
    ):
        line.train(computational_stages=stages, outfeed_mask=[True])
