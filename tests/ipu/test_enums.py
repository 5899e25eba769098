"""The numbers under which words are saved, and which scripts print, are upstream's."""

import pytest
from convoy import ipu
from convoy.ipu import enums

pipelining = ipu.ops.pipelining_ops


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (pipelining.PipelineSchedule, {"Grouped": 0, "Interleaved": 1, "Sequential": 2}),
        (
            ipu.gradient_accumulation.GradientAccumulationReductionMethod,
            {"SUM": 0, "MEAN": 1, "RUNNING_MEAN": 2},
        ),
        (
            ipu.keras.ReplicatedMetricReductionMethod,
            {"NONE": 1, "LIST": 2, "SUM": 3, "MEAN": 4},
        ),
        (ipu.config.StochasticRoundingBehaviour, {"OFF": 0, "ON": 1, "REPLICA_IDENTICAL_ONLY": 2}),
    ],
)
def test_words_have_their_numbers(words, expected):
    assert {word.name: word.value for word in words} == expected


def test_recomputation_has_three_modes():
    assert [mode.name for mode in pipelining.RecomputationMode] == [
        "Auto",
        "RecomputeThenBackpropagate",
        "RecomputeAndBackpropagateInterleaved",
    ]


@pytest.mark.parametrize("given", ["running_mean", "RUNNING_MEAN", "Running_Mean"])
def test_names_are_taken_in_any_case(given):
    method = enums.GradientAccumulationReductionMethod
    assert method.parse(given) is method.parse(method.RUNNING_MEAN) is method.RUNNING_MEAN


@pytest.mark.parametrize("given", ["average", 1, None])
def test_other_words_are_refused(given):
    with pytest.raises(ValueError, match=r"Pass one of SUM, MEAN, RUNNING_MEAN\."):
        enums.GradientAccumulationReductionMethod.parse(given)


def test_a_bool_becomes_a_way_to_round():
    behaviour = ipu.config.StochasticRoundingBehaviour
    assert behaviour.from_bool(True) is behaviour.ON
    assert behaviour.from_bool(False) is behaviour.OFF
