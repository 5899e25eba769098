import dataclasses

import pytest
from convoy.configuration import options
from convoy.train.flags import Options
from convoy.train.graphcore_flags import GraphcoreOptions


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


def test_each_option_beyond_those_of_convoy_train_has_a_reason_why_it_has_no_effect():
    own = {field.name for field in dataclasses.fields(Options)}
    described = options(GraphcoreOptions)
    for field in dataclasses.fields(GraphcoreOptions):
        assert bool(described[field.name].no_effect) == (field.name not in own), field.name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fused_preprocessing": True}, "Pass --accelerator-side-preprocess"),
        (
            {"available_memory_proportion": [1.0, 2.0]},
            "has 2 values, but the number of stages is 1. Pass one value",
        ),
        (
            {"available_memory_proportion": [1.0] * 3, "pipeline_splits": ["a"]},
            "has 3 values, but the number of stages is 2. Pass one value, or two for each",
        ),
    ],
)
def test_graphcores_rules_are_checked(values, message):
    with pytest.raises(ValueError, match=message):
        GraphcoreOptions(**values)
