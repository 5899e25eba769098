"""The state of a model that was made in a strategy's scope, or passed to `convoy.prepare`."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import keras
from convoy.engine.numerics.numerics import Numerics, Settings
from convoy.keras_bridge import ModelState

GradientMap = Callable[[jax.Array, keras.Variable], jax.Array]
"""Takes a gradient and its variable, and returns the gradient to use instead."""


class DeferredSplit(NamedTuple):
    """A number of pipeline stages, and the samples per micro-batch for timing the layers."""

    stages: int
    batch_size: int


class PreparedModel(ModelState):
    """Everything that Convoy keeps for a model; `PreparedModel.of(model)` finds it.

    Keras does not track it, so a model that is saved and loaded does not have it. A stock Keras
    model has the default values below.

    Attributes:
        devices: the devices of the strategy; empty for a stock Keras model.
        data_budget: bytes of each device's memory that data may take.
        numerics: loss scale and rounding of the weight update, with the variables they need.
        gradient_map: a function that changes each gradient before the weight update.
        stages: the pipeline stage of every call of the graph, if stages were assigned.
        deferred_split: the stages into which the model is split when the sizes of its inputs are
            known.
        has_no_stages: whether a trace of the subclassed model found no pipeline stages.
        has_guessed_types: whether the types of the inputs were unknown when it was traced.
        counts_batches_of_replicas: whether progress bars count the batches of all replicas, instead
            of steps.
        use_options: function that takes over the options of the model that this model is a copy of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.devices: tuple[jax.Device, ...] = ()
        self.data_budget = 0
        self.numerics = Numerics(Settings())
        self.gradient_map: GradientMap | None = None
        self.stages: list[int] | None = None
        self.deferred_split: DeferredSplit | None = None
        self.has_no_stages = False
        self.has_guessed_types = False
        self.counts_batches_of_replicas = False
        self.use_options: Callable[..., None] = lambda _: None
