import pytest
from convoy.pipeline import Kind, generate, simulate
from convoy.plan.predict import ParallelConfiguration, Predictor
from tests.plan.networks import MB, chain, machine


def predict(profile, configuration, slots=1, **changes):
    return Predictor(profile, machine(**changes), slots).predict(configuration)


def test_one_device_takes_its_steps_one_after_the_other():
    found = predict(chain(), ParallelConfiguration(1, 1, 2, 5), devices=1)
    assert found.compute == pytest.approx(5 * 0.2, rel=1e-3)
    assert found.throughput == pytest.approx(10, rel=1e-3)
    assert (found.bubble, found.exchange, found.cuts) == (0, 0, ())


def test_replicas_add_an_exchange_and_nothing_else():
    one = predict(chain(), ParallelConfiguration(1, 1, 2, 5), devices=1)
    four = predict(chain(), ParallelConfiguration(4, 1, 2, 5))
    assert four.compute == one.compute
    assert four.exchange == pytest.approx(2 * 3 / 4 * 40 * MB / 1e9)
    assert four.throughput == pytest.approx(40 / (one.seconds + four.exchange))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
@pytest.mark.parametrize("count", [3, 40])
def test_a_long_pipeline_takes_as_long_as_all_of_it_simulated(schedule, count):
    found = predict(chain((1, 2, 2, 1)), ParallelConfiguration(1, 4, 2, count, schedule))
    step, shares = 0.2, (1 / 6, 1 / 3, 1 / 3, 1 / 6)
    addition = 0.6 * 10 * MB / 1e12
    forward = [step * share / 3 for share in shares]
    backward = [2 * seconds + addition for seconds in forward]
    half = [seconds / 2 for seconds in backward]
    durations = dict(zip(Kind, (forward, backward, half, half), strict=True))
    whole = simulate(generate(schedule, 4, count), durations, 2 * MB / 1e15)
    assert found.compute == pytest.approx(whole.seconds, rel=0.01)
    assert found.bubble == pytest.approx(whole.bubble, abs=0.01)


def test_the_slow_layer_has_a_stage_of_its_own():
    found = predict(chain((1, 1, 8, 1)), ParallelConfiguration(1, 3, 1, 6, "1f1b"))
    assert found.cuts == (2, 3)


def test_the_host_holds_up_a_pipeline_of_small_actions():
    found = predict(chain(), ParallelConfiguration(1, 2, 1, 8, "1f1b"), host_action=1.0)
    assert found.compute == 2 * 2 * 8


def test_memory_counts_weights_gradients_slots_and_held_micro_batches():
    weights, sample = 40 * MB, 4 * MB
    alone = predict(chain(), ParallelConfiguration(1, 1, 8, 1), slots=2, devices=1)
    assert alone.memory == weights * 4 + 8 * sample
    accumulated = predict(chain(), ParallelConfiguration(1, 1, 8, 2), slots=2, devices=1)
    assert accumulated.memory == weights * 5 + 8 * sample
    # Of two stages the first holds two micro-batches.
    staged = predict(chain(), ParallelConfiguration(1, 2, 8, 4, "1f1b"), slots=2)
    assert staged.memory == weights / 2 * 5 + 2 * 8 * sample / 2
    again = predict(chain(), ParallelConfiguration(1, 2, 8, 4, "1f1b", True), slots=2)
    assert again.memory == weights / 2 * 5 + 8 * MB + 8 * sample / 2
    assert again.compute > staged.compute


def test_a_cut_moves_where_the_even_one_does_not_fit():
    large = chain(weights=(10 * MB, 10 * MB, 10 * MB, 90 * MB))
    even = ParallelConfiguration(1, 2, 1, 4, "1f1b")
    assert predict(large, even).cuts == (2,)
    narrow = predict(large, even, memory=91 * MB * 4)
    assert narrow.cuts == (3,)
    assert narrow.memory <= 91 * MB * 4


def test_forgetting_in_one_piece_costs_time_and_saves_memory():
    kept = predict(chain((1,) * 16), ParallelConfiguration(1, 1, 64, 1), devices=1)
    forgotten = predict(chain((1,) * 16), ParallelConfiguration(1, 1, 64, 1, "", True), devices=1)
    assert forgotten.memory < kept.memory
    assert kept.compute < forgotten.compute < 4 / 3 * kept.compute


def test_times_between_measured_sizes_lie_on_a_line():
    profile = chain(step_times=((4, 1.0), (16, 3.0)))
    assert [profile.step_seconds(n) for n in (4, 10, 16, 28)] == [1, 2, 3, 5]
    assert profile.step_seconds(1) == pytest.approx(0.5)
    assert chain(step_times=((4, 1.0),)).step_seconds(8) == 2
