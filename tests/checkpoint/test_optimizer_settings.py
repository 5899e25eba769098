import json

import convoy
import keras
import numpy as np
from convoy.checkpoint import optimizer_settings as settings

optimizers, schedules = keras.optimizers, keras.optimizers.schedules


def test_settings_of_a_schedule_are_the_models():
    then = settings.describe(optimizers.Adam(schedules.CosineDecay(1e-3, 100)))
    now = settings.describe(optimizers.Adam(schedules.CosineDecay(5e-3, 200)))
    assert settings.ignored(now, then, {}) == []
    assert settings.changed(now, then) == [
        "learning_rate.initial_learning_rate 0.005 (previously 0.001)",
        "learning_rate.decay_steps 200 (previously 100)",
    ]
    assert settings.of_resumed(now, then) == now


def test_another_schedule_and_lists_are_compared():
    piecewise = [schedules.PiecewiseConstantDecay([10], values) for values in ([1, 2], [1, 3])]
    then, now = (settings.describe(optimizers.SGD(schedule)) for schedule in piecewise)
    assert settings.changed(now, then) == ["learning_rate.values [1, 3] (previously [1, 2])"]
    other = settings.describe(optimizers.SGD(schedules.CosineDecay(1e-3, 100)))
    said = "learning_rate.class_name CosineDecay (previously PiecewiseConstantDecay)"
    assert said in settings.changed(other, then)


def test_a_rate_inside_of_another_optimizer_is_the_checkpoints():
    then, now = (
        settings.describe(convoy.optimizers.Regularized(optimizers.SGD(rate), l2=l2))
        for rate, l2 in ((0.1, 0.0), (0.2, 0.5))
    )
    assert settings.ignored(now, then, {}) == [
        "optimizer.learning_rate 0.2 (the run began with 0.1)"
    ]
    assert settings.changed(now, then) == ["l2 0.5 (previously 0)"]
    assert settings.of_resumed(now, then) == now | {
        "optimizer.learning_rate": then["optimizer.learning_rate"]
    }


def test_a_value_that_the_model_has_already_is_not_ignored():
    then, now = (settings.describe(optimizers.SGD(rate)) for rate in (0.5, 0.25))
    arrays = {"optimizer/1/sgd/learning_rate": np.float32(0.25)}
    assert settings.ignored(now, then, arrays) == []
    arrays = {"optimizer/1/sgd/learning_rate": np.float32(0.5), "optimizer/0/n": np.float32(0.25)}
    assert settings.ignored(now, then, arrays) != []


def test_names_of_optimizers_are_not_compared():
    then, now = settings.describe(optimizers.Adam()), settings.describe(optimizers.Adam())
    assert then == now


def test_settings_come_back_from_json_as_they_were():
    described = settings.describe(convoy.optimizers.LARS(0.1, exclude=("bias", "norm")))
    assert described["exclude"] == ["bias", "norm"]
    assert json.loads(json.dumps(described)) == described


def test_an_optimizer_that_cannot_tell_its_settings_has_none():
    class Silent(optimizers.SGD):
        def get_config(self):
            raise RuntimeError("none of your business")

    assert settings.describe(Silent(0.1)) == {}


def test_code_is_not_a_setting():
    def rate():
        return 0.1

    described = settings.describe(optimizers.SGD(rate))
    assert all(isinstance(value, bool | int | float | str | None) for value in described.values())
