"""The learning rate of a run: scaling, warm-up and stepwise decay."""

import keras
import pytest

from cosmoflow.learning_rate import WarmUpAndDecay, make_schedule, scale
from cosmoflow.settings import LearningRate


@pytest.mark.parametrize(
    ("scaling", "base", "expected"),
    [
        ("none", 64, 1),
        ("linear", 64, 4),
        ("sqrt", 64, 2),
        ("linear", None, 8),
        ("sqrt", None, 8**0.5),
    ],
)
def test_the_rate_is_scaled_by_the_batch(scaling, base, expected):
    """Without a base batch size, it is scaled by the micro-batches per update."""
    assert scale(LearningRate(0.1, scaling, base), 256, 32) == pytest.approx(expected)


def test_a_constant_rate_is_a_number():
    assert make_schedule(LearningRate(0.5), 4, 1, 10) == 0.5


def test_mlperfs_rate_rises_for_four_epochs_and_falls_twice():
    settings = LearningRate(0.001, "linear", 64, 4, {32: 0.25, 64: 0.125})
    schedule = make_schedule(settings, 128, 4, updates=10)
    by_epoch = {epoch: float(schedule(10 * epoch)) for epoch in (0, 1, 3, 4, 32, 33, 64, 65, 127)}
    assert by_epoch == pytest.approx(
        {
            0: 0.001,
            1: 0.00125,
            3: 0.00175,
            4: 0.002,
            32: 0.002,
            33: 0.0005,
            64: 0.0005,
            65: 0.00025,
            127: 0.00025,
        }
    )
    assert float(schedule(19)) == float(schedule(10))


def test_a_decay_during_the_warm_up_applies_after_it():
    schedule = WarmUpAndDecay(0.1, 0.4, 3, {1: 0.5, 5: 0.25}, 2)
    by_epoch = [float(schedule(2 * epoch + 1)) for epoch in range(8)]
    assert by_epoch == pytest.approx([0.1, 0.2, 0.3, 0.2, 0.2, 0.2, 0.1, 0.1])


def test_a_schedule_of_an_earlier_version_can_be_loaded():
    config = {"base": 0.1, "peak": 0.2, "warm_up": 2, "shares": {"3": 0.5}, "updates": 5}
    saved = {
        "module": "convoy.volumes.learning_rate",
        "class_name": "WarmUpAndDecay",
        "config": config,
        "registered_name": "convoy>WarmUpAndDecay",
    }
    schedule = keras.saving.deserialize_keras_object(saved)
    assert isinstance(schedule, WarmUpAndDecay)
    assert float(schedule(25)) == pytest.approx(0.1)


def test_a_schedule_can_be_saved():
    schedule = make_schedule(LearningRate(0.1, n_warmup_epochs=2, decay_schedule={3: 0.5}), 1, 1, 5)
    saved = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(saved)
    assert [float(again(step)) for step in range(30)] == [
        float(schedule(step)) for step in range(30)
    ]
