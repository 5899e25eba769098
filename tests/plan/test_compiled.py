"""Predictions from compiled programs: their memory and work in the place of estimates."""

from dataclasses import replace

import pytest
from convoy.compile.advice import Demand, MemoryNeed
from convoy.compile.analysis import CompiledProgram, ObservedRun
from convoy.compile.failures import TooLarge
from convoy.compile.session import CompileResult
from convoy.compile.stage_memory import StageMemory
from convoy.compile.targets import parse_target
from convoy.plan.compiled import CompiledStep, compiled_step, search_compiled, with_compiled
from convoy.plan.link_speeds import target_machine
from convoy.plan.predict import ParallelConfiguration, Predictor

from .networks import MB, chain

TARGET = parse_target("tpu:v5e:2x2")
RUN = ObservedRun("fit", None, None)
MEMORY = {"argument": 50, "output": 40, "alias": 40, "temp": 800, "generated_code": 10}
PROGRAM = CompiledProgram(
    name="train",
    run=RUN,
    devices=4,
    lower_seconds=0.0,
    compile_seconds=0.0,
    memory=MEMORY,
    donated=40,
    donated_arrays=1,
    aliased_arrays=1,
    flops=6e12,
    collectives=[],
    host_calls=[],
)
ONE = ParallelConfiguration(4, 1, 8, 2)


def test_a_program_without_stages_has_the_work_of_its_micro_batches():
    smaller = replace(PROGRAM, name="metrics", flops=1.0)
    result = CompileResult(TARGET, 1, [smaller, PROGRAM])
    assert compiled_step(ONE, 2, result) == CompiledStep(ONE, 860, 800, 3e12)


def test_the_device_of_a_pipeline_that_needs_the_most_counts():
    stages = [StageMemory(0, (0,), 1, 1, 1, 1, 1), StageMemory(1, (1,), 2, 2, 2, 2, 2)]
    result = CompileResult(TARGET, 1, [PROGRAM], stages=stages)
    staged = replace(ONE, stages=2)
    assert compiled_step(staged, 2, result) == CompiledStep(staged, 10)


def test_a_rejected_program_has_the_memory_that_it_needs():
    rejected = TooLarge(Demand("train", MemoryNeed(1000, 80, 100), 500, RUN))
    step = compiled_step(ONE, 2, CompileResult(TARGET, 1, [], rejected))
    assert step == CompiledStep(ONE, 1000, 900)


def predictor(steps, **changes):
    profile = with_compiled(chain(**changes), steps, TARGET)
    known = {step.configuration: step.memory for step in steps}
    return Predictor(profile, target_machine(TARGET, 0.0), 1, known)


def test_without_a_program_the_estimate_stays():
    assert with_compiled(chain(), [], TARGET) == chain()


def test_a_micro_batch_takes_no_less_than_its_compiled_work():
    # 8 samples take 0.8 s by the estimate, and 1.6 s by their work.
    estimate, work = CompiledStep(ONE, MB, MB, 1.0), CompiledStep(ONE, MB, MB, 1.6 * 197e12)
    assert predictor([estimate]).profile.step_seconds(8) == pytest.approx(0.8)
    found = predictor([work])
    assert found.profile.step_seconds(8) == pytest.approx(1.6)
    assert found.profile.step_seconds(4) == pytest.approx(0.8)
    assert "compiled for tpu:v5e:2x2, micro-batches of 8; times" in found.profile.source


def test_memory_of_another_micro_batch_differs_by_its_activations():
    # 16 MB for 8 samples with 4 MB of outputs each: half of them are held.
    found = predictor([CompiledStep(ONE, 100 * MB, 16 * MB, 1.0)])
    assert found.memory(ONE) == 100 * MB
    assert found.memory(replace(ONE, micro_batch=16)) == pytest.approx(116 * MB)
    assert found.memory(replace(ONE, micro_batch=4)) == pytest.approx(92 * MB)


def test_the_nearest_program_counts():
    larger = replace(ONE, micro_batch=64)
    steps = [
        CompiledStep(ONE, 100 * MB, 16 * MB, 1.0),
        CompiledStep(larger, 500 * MB, 64 * MB, 8.0),
    ]
    found = predictor(steps)
    assert found.memory(replace(ONE, micro_batch=9)) == pytest.approx(101 * MB)
    assert found.memory(replace(ONE, micro_batch=63)) == pytest.approx(499 * MB)


def searched(compile_one):
    machine = target_machine(TARGET, 0.0)
    profile, steps = search_compiled(
        lambda profile, known: Predictor(profile, machine, 1, known),
        chain(),
        TARGET,
        1024,
        3,
        compile_one,
    )
    return profile, steps


def test_the_best_configuration_is_compiled_once():
    def compile_one(predictor, configuration):
        return CompiledStep(configuration, 1e9, 0.5e9, 1e12)

    profile, steps = searched(compile_one)
    assert len(steps) <= 3
    assert profile.compiled_memory
    assert steps[-1].configuration.replicas == 4


def test_a_configuration_that_does_not_fit_is_replaced():
    asked = []

    def compile_one(predictor, configuration):
        asked.append(configuration)
        # A hundred times the estimate, for each sample.
        temporary = 400 * MB * configuration.micro_batch
        flops = 1e12 if temporary < TARGET.memory else 0.0
        return CompiledStep(configuration, temporary + 100 * MB, temporary, flops)

    _, steps = searched(compile_one)
    assert len(asked) == len(set(asked)) == len(steps)
    assert steps[-1].memory <= TARGET.memory
