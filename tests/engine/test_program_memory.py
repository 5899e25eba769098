"""What XLA's own analysis says that a training program takes on a device."""

import keras
import numpy as np
import pytest
from keras import layers
from tests.equivalence.side_by_side import make_convoy

pytestmark = pytest.mark.integration


def network(steps=1):
    x = inputs = keras.Input((16, 16, 4))
    for block in range(3):
        for part in range(4):
            x = layers.Conv2D(16, 3, padding="same", name=f"block{block}_conv{part}")(x)
            x = layers.Activation("silu", name=f"block{block}_silu{part}")(x)
        x = layers.Activation("linear", name=f"end{block}")(x)
    x = layers.Dense(512, name="wide")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(256, name="head")(x))
    model.compile("adam", "mse", steps_per_execution=steps)
    return model


@pytest.fixture
def memory(rng):
    def analyse(batch_size=4, **strategy):
        """Train once, and return the analysis of the program that did."""
        model = make_convoy(network, 1, **strategy)
        plan = model.set_gradient_accumulation.__self__.host_loop.config
        samples = batch_size * plan.micro_batches
        x = rng.normal(size=(samples, 16, 16, 4)).astype("float32")
        y = np.zeros((samples, 256), "float32")
        chunks = []
        programs = model.set_gradient_accumulation.__self__.host_loop.runners.get
        model.fit(x, y, batch_size=batch_size, verbose=0)
        made = programs("train")
        run = made.run
        made.run = lambda chunk: (chunks.append(chunk), run(chunk))[1]
        model.fit(x, y, batch_size=batch_size, verbose=0)
        return made.memory(chunks[0])

    return analyse


def test_shards_of_the_optimizer_state_take_less(memory):
    whole = memory(devices=4)
    shards = memory(devices=4, shard_optimizer_state=True)
    # Adam keeps two values for each weight: of three parts, two shrink to a quarter.
    weights = 4 * sum(np.prod(v.shape) for v in network().trainable_variables)
    saved = whole.argument_size_in_bytes - shards.argument_size_in_bytes
    assert saved > 0.9 * 2 * weights * 3 / 4


@pytest.mark.parametrize("activation_checkpointing", [["block0*", "block1*"], 8_000_000], ids=str)
def test_recomputed_activations_take_less(memory, activation_checkpointing):
    kept = memory(batch_size=32)
    forgotten = memory(batch_size=32, activation_checkpointing=activation_checkpointing)
    assert forgotten.temp_size_in_bytes < 0.75 * kept.temp_size_in_bytes


def test_accumulation_does_not_grow_with_the_count(memory):
    two = memory(gradient_accumulation=2, data_budget=0)
    sixteen = memory(gradient_accumulation=16, data_budget=0)
    assert sixteen.temp_size_in_bytes <= 1.01 * two.temp_size_in_bytes
