import pytest
from convoy.pipeline import ALIASES, NAMES, Kind, Schedule, generate, simulate, validate
from tests.pipeline.write_golden import SIZES, path_of


def steps(schedule: Schedule) -> list[str]:
    """Return each device's actions as upstream's traces write them: F0(0) and so on."""
    return [
        " ".join(f"{a.kind}{a.stage}({a.micro_batch})" for a in row) for row in schedule.actions
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("trains", [True, False])
def test_every_schedule_is_valid_at_every_size(name, stages, micro_batches, trains):
    schedule = validate(generate(name, stages, micro_batches, trains=trains))
    assert (schedule.stages, schedule.micro_batches) == (stages, micro_batches)
    assert schedule.trains == trains


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "mapping", [[0, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 1, 2, 0], [0, 1, 1, 0]]
)
@pytest.mark.parametrize("micro_batches", [1, 4, 5])
def test_several_stages_may_share_a_device(name, mapping, micro_batches):
    schedule = validate(generate(name, 4, micro_batches, mapping))
    assert schedule.mapping == tuple(mapping)


def test_gpipe_runs_in_upstreams_order():
    first, second = steps(generate("gpipe", 2, 8))
    assert first.startswith("F0(0) F0(1) F0(2) B0(0) F0(3) B0(1) F0(4)")
    assert first.endswith("B0(4) F0(7) B0(5) B0(6) B0(7)")
    assert second.startswith("F1(0) B1(0) F1(1) B1(1) F1(2)")
    assert second.endswith("B1(6) F1(7) B1(7)")
    full = steps(generate("gpipe", 3, 12))
    for device, pair in enumerate(["B0(0) F0(5)", "B1(1) F1(4)", "B2(2) F2(3)"]):
        assert pair in full[device]


def test_1f1b_runs_in_upstreams_order():
    first, second = steps(generate("1f1b", 2, 8))
    assert first.startswith("F0(0) F0(1) B0(0) F0(2) B0(1)")
    assert second.startswith("F1(0) B1(0) F1(1) B1(1)")


TIME_STEPS = {
    "gpipe": lambda m, forward, stages: m + forward,
    "1f1b": lambda m, forward, stages: 2 * m + forward,
    "sequential": lambda m, forward, stages: 2 * stages * m + forward,
}
"""When upstream runs a micro-batch's n-th action: forwards, then backwards in the other order."""


@pytest.mark.parametrize("name", TIME_STEPS)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 8), (3, 12), (4, 16)])
def test_actions_follow_each_other_by_upstreams_time_steps(name, stages, micro_batches):
    at = TIME_STEPS[name]
    for stage, row in enumerate(steps(generate(name, stages, micro_batches))):
        # In one time step the older micro-batch's backward pass comes first.
        expected = sorted(
            (at(m, place, stages), kind, f"{kind}{stage}({m})")
            for m in range(micro_batches)
            for kind, place in (("F", stage), ("B", 2 * stages - 1 - stage))
        )
        assert row.split() == [action for _, _, action in expected]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 8), (3, 12), (4, 16)])
def test_schedules_take_as_many_time_steps_as_upstreams(stages, micro_batches):
    """A forward or a backward pass is one step."""
    durations = {Kind.FORWARD: 1.0, Kind.BACKWARD: 1.0}

    def steps_of(name):
        return simulate(generate(name, stages, micro_batches), durations).seconds

    assert steps_of("1f1b") == 2 * micro_batches + 2 * stages - 2
    assert steps_of("sequential") == 2 * stages * micro_batches


def test_sequential_runs_in_upstreams_order():
    timeline = simulate(generate("sequential", 2, 2))
    order = [str(event.action) for event in sorted(timeline.events, key=lambda e: e.start)]
    assert order == ["0F0", "1F0", "1B0", "0B0", "0F1", "1F1", "1B1", "0B1"]


def test_sequential_is_one_stage_at_a_time():
    timeline = simulate(generate("sequential", 3, 4))
    for before, after in zip(timeline.events, timeline.events[1:], strict=False):
        assert after.start >= before.end


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 8), (3, 12), (4, 16)])
def test_stages_hold_as_many_micro_batches_as_upstreams(stages, micro_batches):
    def peaks(name):
        return list(simulate(generate(name, stages, micro_batches)).peak_stash)

    assert peaks("gpipe") == [2 * (stages - 1 - s) + 1 for s in range(stages)]
    assert peaks("1f1b") == [stages - s for s in range(stages)]
    assert peaks("sequential") == [1] * stages


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 16), (4, 16), (4, 4)])
def test_the_bubble_of_one_forward_one_backward_is_that_of_theory(stages, micro_batches):
    timeline = simulate(generate("1f1b", stages, micro_batches))
    expected = (stages - 1) / (micro_batches + stages - 1)
    assert timeline.bubble == pytest.approx(expected)


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 8), (4, 8), (4, 16)])
def test_zero_bubble_waits_less_and_holds_no_more(stages, micro_batches):
    plain = simulate(generate("1f1b", stages, micro_batches))
    split = simulate(generate("zero-bubble", stages, micro_batches))
    assert split.seconds < plain.seconds
    assert max(split.peak_stash) <= max(plain.peak_stash)


def test_several_stages_on_a_device_fill_the_pipeline_sooner():
    """Twice as many stages, each half as long, in a loop over the same devices."""
    once = simulate(generate("1f1b", 2, 8))
    durations = {Kind.FORWARD: 0.5, Kind.BACKWARD: 1.0}
    looped = simulate(generate("1f1b", 4, 8, [0, 1, 0, 1]), durations)
    assert looped.seconds < once.seconds


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_schedules_stay_as_they_are(name, stages, micro_batches):
    path = path_of(name, stages, micro_batches)
    assert path.exists(), f"Write it: python tests/pipeline/write_golden.py {name}"
    assert generate(name, stages, micro_batches).to_csv() == path.read_text()


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_makes_the_same_schedule(alias, name):
    assert generate(alias.capitalize(), 3, 6) == generate(name, 3, 6)


def test_words_are_taken_in_any_case():
    assert generate("Zero_Bubble", 2, 2) == generate("zero-bubble", 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such", 2, 2), "'no-such' is unknown. Pass one of sequential, "),
        (("gpipe", 0, 2), "0 stages and 2 micro-batches make no pipeline"),
        (("gpipe", 3, 2, [0, 1]), "has 2 entries, but the model has 3 stages"),
        (("gpipe", 2, 2, [0, 2]), "leaves out a device"),
    ],
)
def test_what_makes_no_schedule_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate(*arguments)
