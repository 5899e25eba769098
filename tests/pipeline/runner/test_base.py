"""What training and inference in stages share: programs by kind of chunk, and dispatch in order."""

import convoy
import keras
import numpy as np
import pytest
from convoy.pipeline import generate
from convoy.pipeline.runner.base import PipelineRunner
from convoy.pipeline.runner.inference import InferenceCall
from convoy.pipeline.runner.training import TrainingCall
from keras import layers

X = np.linspace(-1, 1, 40, dtype=np.float32).reshape(10, 4)
Y = X[:, :1]


def network(accumulation=2, **options):
    with convoy.Strategy(devices=4, gradient_accumulation=accumulation).scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(1, name="b")])
        model.compile("sgd", "mse", steps_per_execution=2)
    convoy.split(model, ["b"])
    model.set_pipelining_options(**options)
    return model


@pytest.fixture
def dispatched(monkeypatch):
    """The replicas and actions that calls run, in order."""
    order = []
    for call in (TrainingCall, InferenceCall):
        original = call.run_action

        def run_action(self, action, replica, original=original):
            order.append((replica, action))
            return original(self, action, replica)

        monkeypatch.setattr(call, "run_action", run_action)
    return order


def test_an_action_is_dispatched_after_what_it_needs(dispatched):
    network(schedule="zero-bubble").fit(X[:8], Y[:8], batch_size=2, verbose=0)
    schedule = generate("zero-bubble", 2, 2)
    for replica in range(2):
        done = set()
        for action in [a for r, a in dispatched if r == replica]:
            assert done.issuperset(schedule.needs(action))
            done.add(action)
        assert done == set(schedule)


def test_micro_batches_leave_the_pipeline_before_others_enter(dispatched):
    network().predict(X[:4], batch_size=1, verbose=0)
    actions = [str(action) for replica, action in dispatched if replica == 0]
    assert actions == ["0F0", "1F0", "0F1", "1F1"]


def test_programs_are_made_once_for_each_kind_of_chunk(monkeypatch):
    made = []
    original = PipelineRunner._make_programs

    def make_programs(self, chunk):
        made.append((self.mode, chunk.micro_batch_samples, chunk.sharded))
        return original(self, chunk)

    monkeypatch.setattr(PipelineRunner, "_make_programs", make_programs)
    model = network(accumulation=1)
    for _ in range(2):
        model.predict(X, batch_size=4, verbose=0)  # 8 samples over two replicas, and 2 left
    assert len(made) == len(set(made))
    assert {mode for mode, *_ in made} == {"predict"}
