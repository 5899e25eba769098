import math

import keras
import numpy as np
import pytest
from convoy.train.flags import Options
from convoy.train.learning_rate import (
    Constant,
    MaskWarmUp,
    ShiftWarmUp,
    Staircase,
    make_schedule,
)
from keras.optimizers.schedules import CosineDecay, PiecewiseConstantDecay, PolynomialDecay

RATE = {"initial_learning_rate": 0.5}


def values(schedule, steps):
    return [float(schedule(step)) for step in steps]


def make(name="const", params=RATE, batch=4, updates=10, warm_up=None, staircase=False, **options):
    options = Options(
        lr_schedule=name,
        lr_schedule_params=params,
        lr_warmup_params=warm_up,
        lr_staircase=staircase,
        **options,
    )
    return make_schedule(options, batch, updates)


def test_a_constant_is_scaled_by_the_batch():
    assert values(make(batch=10, params={"initial_learning_rate": 2}), [0, 99]) == [20, 20]


def test_steps_hold_up_to_and_including_their_boundaries_and_are_not_scaled():
    schedule = make("stepped", {"boundaries": [1, 2.5], "values": [3.0, 2.0, 1.0]})
    assert values(schedule, [0, 10, 11, 25, 26, 1000]) == [3, 3, 2, 2, 1, 1]


def test_a_cosine_ends_at_zero_and_stays_there():
    schedule = make("cosine", RATE | {"epochs_to_total_decay": 3})
    expected = [(1 + math.cos(math.pi * min(step, 30) / 30)) for step in range(40)]
    np.testing.assert_allclose(values(schedule, range(40)), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("warm_up", "decay"),
    [
        (None, 40),
        ({"warmup_mode": "shift", "warmup_epochs": 1}, 30),
        ({"warmup_mode": "mask", "warmup_epochs": 1}, 40),
    ],
)
def test_a_schedule_lasts_as_long_as_the_run(warm_up, decay):
    default = make("cosine", warm_up=warm_up, num_epochs=4)
    explicit = make("cosine", RATE | {"epochs_to_total_decay": decay / 10}, warm_up=warm_up)
    assert values(default, range(45)) == values(explicit, range(45))
    assert values(default, [40]) == [0]


def test_a_learning_rate_is_not_scaled_and_has_priority():
    assert values(make(learning_rate=0.3, batch=10), [0, 99]) == pytest.approx([0.3, 0.3])
    schedule = make("cosine", {}, learning_rate=0.3, num_epochs=2)
    assert values(schedule, [0, 10, 20]) == pytest.approx([0.3, 0.15, 0])


def test_a_polynomial_ends_at_its_ratio():
    params = RATE | {"epochs_to_total_decay": 2, "end_learning_rate_ratio": 0.1, "power": 2}
    expected = [1.8 * (1 - min(step, 20) / 20) ** 2 + 0.2 for step in range(25)]
    np.testing.assert_allclose(
        values(make("polynomial", params), range(25)), expected, rtol=1e-6, atol=1e-7
    )


def test_a_shifted_warm_up_rises_and_then_begins():
    schedule = ShiftWarmUp(PiecewiseConstantDecay([2], [1.0, 0.5]), 9)
    expected = [(step + 1) / 10 for step in range(9)] + [1, 1, 1, 0.5]
    np.testing.assert_allclose(values(schedule, range(13)), expected, rtol=1e-6)
    assert values(schedule, [4]) == [0.5]


def test_a_masking_warm_up_weakens_what_goes_on_underneath():
    schedule = MaskWarmUp(PiecewiseConstantDecay([2], [1.0, 0.5]), 9)
    base = [1.0] * 3 + [0.5] * 10
    expected = [b * (step + 1) / 10 if step < 9 else b for step, b in enumerate(base)]
    np.testing.assert_allclose(values(schedule, range(13)), expected, rtol=1e-6)


def test_a_staircase_holds_within_an_epoch_warm_up_included():
    settings = {"warm_up": {"warmup_mode": "shift", "warmup_epochs": 2}, "staircase": True}
    params = RATE | {"epochs_to_total_decay": 5}
    smooth = make("cosine", params, warm_up=settings["warm_up"])
    steps = make("cosine", params, **settings)
    assert isinstance(steps, Staircase)
    for step in range(60):
        assert float(steps(step)) == float(smooth(step // 10 * 10))


@pytest.mark.parametrize(
    ("name", "params", "kind"),
    [
        ("const", RATE, Constant),
        ("cosine", RATE | {"epochs_to_total_decay": 1}, CosineDecay),
        ("stepped", {"boundaries": [], "values": [1.0]}, Constant),
        ("stepped", {"boundaries": [1], "values": [1.0, 2.0]}, PiecewiseConstantDecay),
        (
            "polynomial",
            RATE | {"epochs_to_total_decay": 1, "end_learning_rate_ratio": 0, "power": 1},
            PolynomialDecay,
        ),
    ],
)
def test_every_name_gives_its_schedule_and_survives_saving(name, params, kind):
    schedule = make(name, params)
    assert isinstance(schedule, kind)
    wrapped = Staircase(MaskWarmUp(schedule, 3), 2)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(wrapped))
    assert values(again, range(8)) == values(wrapped, range(8))


def cosine(step, rate, decay_updates):
    return 0.5 * rate * (1 + math.cos(math.pi * min(step, decay_updates) / decay_updates))


def polynomial(step, rate, decay_updates, end, power):
    return (rate - end) * (1 - min(step, decay_updates) / decay_updates) ** power + end


def stepped(step, boundaries, values):
    return values[sum(step > boundary for boundary in boundaries)]


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("Constant", {"rate": 0.3}, lambda step, rate: rate),
        ("Cosine", {"rate": 0.4, "decay_updates": 40}, cosine),
        ("Polynomial", {"rate": 3.0, "decay_updates": 30, "end": 0.1, "power": 2}, polynomial),
        ("Stepped", {"boundaries": [2, 20], "values": [1.0, 0.5, 0.1]}, stepped),
        ("Stepped", {"boundaries": [], "values": [0.7]}, stepped),
    ],
)
def test_schedules_in_files_of_earlier_versions_have_the_same_values(name, config, expected):
    saved = {
        "module": "convoy.vision.learning_rate",
        "class_name": name,
        "config": config,
        "registered_name": f"convoy>{name}",
    }
    warm_up = {
        "module": "convoy.vision.learning_rate",
        "class_name": "MaskWarmUp",
        "config": {"base": saved, "updates": 9},
        "registered_name": "convoy>MaskWarmUp",
    }
    steps = range(60)
    found = values(keras.saving.deserialize_keras_object(saved), steps)
    rates = np.array([expected(step, **config) for step in steps])
    np.testing.assert_allclose(found, rates, rtol=1e-6, atol=1e-7)
    rising = np.minimum([(step + 1) / 10 for step in steps], 1)
    found = values(keras.saving.deserialize_keras_object(warm_up), steps)
    np.testing.assert_allclose(found, rates * rising, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "params", "settings", "message"),
    [
        ("sine", RATE, {}, "--lr-schedule sine is not one of"),
        ("cosine", {}, {}, "has nothing, but initial_learning_rate is missing"),
        ("polynomial", RATE, {}, "end_learning_rate_ratio, power is missing"),
        (
            "cosine",
            RATE,
            {"warm_up": {"warmup_mode": "shift", "warmup_epochs": 1}},
            "a warm-up of 1 epochs leaves nothing of the 1 epochs",
        ),
        (
            "stepped",
            {"boundaries": [1], "values": [1.0, 0.1]},
            {"learning_rate": 0.1},
            "--learning-rate has no effect on --lr-schedule stepped",
        ),
        ("const", RATE | {"rate": 1}, {}, "rate is unknown"),
        (
            "stepped",
            {"boundaries": [1], "values": [1.0]},
            {},
            "1 boundaries need 2 values, but there are 1. Pass one",
        ),
        ("cosine", RATE | {"epochs_to_total_decay": 0}, {}, "less than one of the 10 .* Pass more"),
        ("const", RATE, {"warm_up": {"warmup_mode": "shift"}}, "warmup_epochs is missing"),
        ("const", RATE, {"warm_up": {"warmup_mode": "hot", "warmup_epochs": 1}}, "shift or mask"),
    ],
)
def test_what_cannot_be_made_is_refused(name, params, settings, message):
    with pytest.raises(ValueError, match=message):
        make(name, params, **settings)
