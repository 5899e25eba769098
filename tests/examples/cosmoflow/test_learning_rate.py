"""The learning rate of a run: scaled by the batch, rising, and falling in steps."""

import keras
import pytest

from cosmoflow.learning_rate import make_schedule, scale
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
    """Without a base batch, by the number of micro-batches in an update."""
    assert scale(LearningRate(0.1, scaling, base), 256, 32) == pytest.approx(expected)


def test_a_rate_that_stays_the_same_is_a_number():
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


def test_a_schedule_can_be_saved():
    schedule = make_schedule(LearningRate(0.1, n_warmup_epochs=2, decay_schedule={3: 0.5}), 1, 1, 5)
    saved = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(saved)
    assert [float(again(step)) for step in range(30)] == [
        float(schedule(step)) for step in range(30)
    ]
