import itertools

import pytest
from convoy.pipeline.balance.layer_costs import LayerSizes
from convoy.pipeline.balance.partition import StageMemory, partition
from hypothesis import given, settings
from hypothesis import strategies as st


def slowest(costs, cuts, transfers=()):
    ends = [0, *cuts, len(costs)]
    found = []
    for first, end in itertools.pairwise(ends):
        sent = transfers[end - 1] if transfers and end < len(costs) else 0
        received = transfers[first - 1] if transfers and first else 0
        found.append(sum(costs[first:end]) + sent + received)
    return max(found)


def test_equal_costs_are_cut_evenly():
    assert partition([1] * 12, 4) == [3, 6, 9]


def test_a_large_one_gets_a_stage_of_its_own():
    assert partition([1, 1, 10, 1, 1], 3) == [2, 3]


def test_a_cut_goes_where_little_is_sent():
    assert partition([1, 1, 1, 1], 2) == [2]
    assert partition([1, 1, 1, 1], 2, transfers=[0, 9, 9, 9]) == [1]


def test_of_equally_good_cuts_the_more_even_is_taken():
    assert partition([6, 1, 1, 1, 1, 1, 1], 3) == [1, 4]


def test_one_stage_is_all():
    assert partition([3, 4], 1) == []


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.integers(1, 4),
    st.lists(st.integers(0, 5), min_size=8, max_size=8),
)
def test_no_other_cut_is_better(costs, stages, transfers):
    if stages > len(costs):
        return
    every = itertools.combinations(range(1, len(costs)), stages - 1)
    best = min(slowest(costs, cuts, transfers) for cuts in every)
    assert slowest(costs, partition(costs, stages, transfers), transfers) == best


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=2, max_size=8),
    st.integers(1, 4),
    st.sets(st.integers(1, 7)),
    st.integers(5, 60),
)
def test_only_places_and_stages_that_are_allowed_count(costs, stages, places, limit):
    if stages > len(costs):
        return

    def fits(first, end, after):
        return sum(costs[first:end]) * (after + 1) <= limit

    def allowed(cuts):
        ends = list(itertools.pairwise([0, *cuts, len(costs)]))
        return all(fits(*ends[i], stages - 1 - i) for i in range(stages))

    may_cut = sorted(place for place in places if place < len(costs))
    every = [c for c in itertools.combinations(may_cut, stages - 1) if allowed(c)]
    found = partition(costs, stages, allowed=may_cut, fits=fits)
    if not every:
        assert found is None
    else:
        assert tuple(found) in every
        assert slowest(costs, found) == min(slowest(costs, cuts) for cuts in every)


@pytest.mark.parametrize(
    ("stages", "message"), [(3, "2 layers cannot be split into 3"), (0, "=0 is")]
)
def test_what_cannot_be_cut_is_refused(stages, message):
    with pytest.raises(ValueError, match=message):
        partition([1, 1], stages)


def test_a_stage_holds_as_many_micro_batches_as_stages_follow():
    memory = StageMemory([LayerSizes(None, {}, {}, 10, 5, 100, 0)] * 3, slots=2)
    assert memory.bytes(0, 2, after=1) == 2 * (10 * 4 + 5) + 2 * 200
    assert memory.bytes(2, 3, after=0) == 10 * 4 + 5 + 100
