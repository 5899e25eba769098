"""The composition of a step with its wrappers, without compiling it."""

from dataclasses import replace
from types import SimpleNamespace

import convoy
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from convoy.engine.compose import Composition, fetch_nothing, run_steps
from convoy.engine.data.chunks import Chunk
from convoy.engine.data.placement import Placement, tree_shapes
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.state import State, Variables
from convoy.engine.step.replicate import Roles
from convoy.keras_bridge import Batches

BATCH = 4


def make_model():
    with convoy.Strategy(devices=1).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", metrics=["mae"])
    x, y = np.ones((BATCH, 3), np.float32), np.ones((BATCH, 2), np.float32)
    data = Batches(x, y, None, BATCH, None, False, None)
    data.build(model, "train", lambda batch: None, True)  # the optimizer and the metrics
    return model


def composition(mode, **options):
    model = make_model()
    variables = Variables(model, mode)
    config = ExecutionConfig(Placement(None), **options)
    roles = Roles.of(model, variables)
    return Composition(model, config, mode, roles, None, variables), variables.read()


def chunk(steps=2, *, sharded=True):
    x, y = jnp.ones((steps, BATCH, 3)), jnp.ones((steps, BATCH, 2))
    return Chunk("block", (x, y), BATCH, steps, steps, sharded=sharded)


def test_only_training_on_complete_batches_accumulates():
    config = composition("train", gradient_accumulation=2)[0].config
    assert config.gradient_accumulation_for("train", chunk()) == 2
    assert config.gradient_accumulation_for("train", chunk(sharded=False)) == 1
    assert config.gradient_accumulation_for("evaluate", chunk()) == 1


@pytest.mark.parametrize(
    ("reductions", "expected"),
    [(("mean", "mean"), 8), (("sum", "mean"), 4), (("mean", "sum"), 2), (("sum", "sum"), 1)],
)
def test_a_mean_is_over_all_local_batches_of_a_weight_update(reductions, expected):
    config = convoy.Strategy(devices=2, gradient_accumulation=4).execution_config
    reduction, over_micro_batches = reductions
    config = replace(config, reduction=reduction, accumulation_reduction=over_micro_batches)
    assert config.local_batches_in_mean("train", chunk()) == expected
    assert config.local_batches_in_mean("train", chunk(sharded=False)) == 1


def test_every_replica_runs_an_incomplete_batch():
    made = Composition(None, SimpleNamespace(replicas=4), "train", None, None, None)
    assert made.replicas(chunk()) == 4
    assert made.replicas(chunk(sharded=False)) == 1


@pytest.mark.parametrize("mode", ["train", "evaluate", "predict"])
def test_a_program_returns_the_state_that_it_changes_and_an_outcome(mode):
    made, state = composition(mode)
    constants, changing = [], state
    if mode != "train":
        constants, changing = state.trainable, state._replace(trainable=[])
    lowered = made.program(chunk(), None, output_steps=5).lower(
        constants, changing, chunk().source, jnp.int32([0, 2])
    )
    new, outcome = lowered.out_info
    assert tree_shapes(new) == tree_shapes(changing)
    if mode == "predict":
        assert outcome.shape == (5, BATCH, 2)
    else:
        assert set(outcome) == {"loss", "mae"}


def test_the_state_is_donated_and_constants_are_not():
    made, state = composition("evaluate")
    lowered = made.program(chunk(), None, 1).lower(
        state.trainable, state._replace(trainable=[]), chunk().source, jnp.int32([0, 1])
    )
    constants, changing, source, span = lowered.args_info[0]
    assert all(leaf.donated for leaf in changing.metrics)
    assert not any(leaf.donated for leaf in [*constants, *source, span])


def test_a_step_is_folded_if_nothing_in_it_has_effects():
    made, state = composition("predict")
    folded = made.fold(chunk(), tree_shapes(state))
    assert folded is not None
    constants, changing = folded.divide(state)
    assert len(constants) == 2
    assert changing.trainable == []


def test_a_models_own_step_is_not_folded():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

        def predict_step(self, state, data):
            return data[0], state

    with convoy.Strategy(devices=1).scope():
        model = Own()
    model(jnp.ones((1, 3)))
    variables = Variables(model, "predict")
    roles = Roles.of(model, variables)
    config = ExecutionConfig(Placement(None))
    made = Composition(model, config, "predict", roles, None, variables)
    assert made.fold(chunk(), tree_shapes(variables.read())) is None


def test_inference_runs_on_constants_in_the_place_of_weights():
    def run(state, source, steps):
        return state, state.trainable

    state = State([], [], [], [])
    assert run_steps(run, "predict", ["w"], state, None, 1) == (state, ["w"])
    assert run_steps(run, "train", ["w"], state, None, 1) == (state, [])


def test_a_batch_can_be_its_own_source():
    batch = object()
    assert fetch_nothing(batch, 0) is batch
