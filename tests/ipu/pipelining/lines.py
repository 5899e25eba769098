"""Stages to run: of numbers, and of a line whose gradients are known."""

import keras
import numpy as np
from convoy import ipu
from convoy.ipu.ops.pipelining_ops import (
    OptimizerFunctionOutput,
    pipeline,
)

Infeed = ipu.ipu_infeed_queue.IPUInfeedQueue
Outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue
Mode = ipu.ipu_outfeed_queue.IPUOutfeedMode
X, RATE, START = 1.5, 0.5, 1.0


def numbers(count=64):
    return Infeed([np.float32(number) for number in range(count)])


def double(x):
    return 2 * x


def add_one(x):
    return x + 1


def identity(x):
    return x


def computed(stages, count=2, **settings):
    """Run stages on the numbers from 0; return what came out."""
    outfeed = Outfeed()
    given = {"infeed_queue": numbers(), "outfeed_queue": outfeed}
    pipeline(stages, count, **given | settings)
    return outfeed.dequeue()


class Line:
    """L = w x + y, with the product in one stage and the sum in another."""

    def __init__(self, optimizer=None, y=0.0):
        self.layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        self.optimizer = optimizer or keras.optimizers.SGD(RATE)
        self.infeed = Infeed([(np.full((1, 1), X, "float32"), np.float32(y))] * 64)
        self.outfeed = Outfeed()

    def first(self, x, y):
        return self.layer(x), y

    def second(self, product, y):
        return keras.ops.mean(product) + y

    def optimizer_function(self, loss, *others):
        return OptimizerFunctionOutput(self.optimizer, loss)

    def train(self, count=4, **settings):
        given = {
            "computational_stages": [self.first, self.second],
            "infeed_queue": self.infeed,
            "outfeed_queue": self.outfeed,
            "optimizer_function": self.optimizer_function,
        }
        return pipeline(gradient_accumulation_count=count, **given | settings)

    @property
    def weight(self):
        return float(np.asarray(self.layer.kernel).squeeze())
