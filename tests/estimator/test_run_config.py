import pytest
from convoy.estimator import RunConfig


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"steps_per_execution": 0}, "steps_per_execution=0"),
        ({"keep": True}, "keep=True"),
        ({"checkpoint_every": "epoch"}, "an estimator counts steps"),
        ({"checkpoint_every": "often"}, "not an interval between checkpoints"),
    ],
)
def test_refuses_a_configuration_that_has_no_meaning(arguments, match):
    with pytest.raises(ValueError, match=match):
        RunConfig(**arguments)
