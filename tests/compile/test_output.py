"""Results of compiling, as text and as JSON."""

import json
from dataclasses import replace

import pytest
from convoy.compile import output
from convoy.compile.advice import Demand, MemoryNeed
from convoy.compile.analysis import Collective, CompiledProgram, ObservedRun
from convoy.compile.failures import TooLarge
from convoy.compile.session import CompileResult
from convoy.compile.stage_memory import StageMemory
from convoy.compile.targets import parse_target

TARGET = parse_target("tpu:v5e:4x4")
GIB = 1 << 30
RUN = ObservedRun("fit", None, None)
PROGRAM = CompiledProgram(
    name="train",
    run=RUN,
    devices=16,
    lower_seconds=2.0,
    compile_seconds=30.0,
    memory={
        "argument": 3 * GIB,
        "output": 2 * GIB,
        "alias": 2 * GIB,
        "temp": 4 * GIB,
        "generated_code": 0,
    },
    donated=2 * GIB,
    donated_arrays=10,
    aliased_arrays=10,
    flops=197e12,
    collectives=[Collective("all-reduce", 1, GIB)],
    host_calls=[],
)
STAGE = StageMemory(0, (0, 1), state=GIB, data=GIB, residuals=GIB, working=GIB, code=0)


def lines(program):
    described = output.describe(program, TARGET).splitlines()
    return described[0], {line[2:15].strip(): line[15:] for line in described[1:]}


def test_the_heading_names_devices_hosts_and_memory():
    assert output.heading(TARGET, 4).startswith("tpu:v5e:4x4: 16 devices on 4 hosts, 15.8 GiB each")
    assert "75% of its memory" in output.heading(parse_target("gpu:h100:8"), 1)


def test_a_program_has_a_line_for_each_subject():
    title, found = lines(PROGRAM)
    assert title == "train (fit), on 16 devices"
    assert found["memory"].startswith("7 GiB of 15.8 GiB on each device (44.4%)")
    # What takes no memory is left out.
    assert found[""] == "state 2 GiB, other arguments 1 GiB, temporary 4 GiB"
    assert "per weight update and device: at least 1 s at 197 TFLOP/s" in found["work"]
    assert found["collectives"] == "1 all-reduce of 1 GiB per weight update"
    assert found["host calls"] == "none"


def test_a_program_that_does_not_train_is_counted_by_call():
    run = ObservedRun("predict", None, None)
    changed = replace(PROGRAM, name="predict", run=run, collectives=[], host_calls=["callback"])
    _, found = lines(changed)
    assert "per call and device" in found["work"]
    assert found["collectives"] == "none"
    assert found["host calls"] == "callback"
    _, found = lines(replace(PROGRAM, flops=0.0))
    assert found["work"].startswith("not known")


def test_the_verdict_names_what_takes_most():
    result = CompileResult(TARGET, 4, [PROGRAM, replace(PROGRAM, name="small", memory=_halved())])
    assert output.verdict(result) == "Fits: train takes 7 GiB of 15.8 GiB on a device."
    assert output.verdict(replace(result, programs=[])) == "Nothing was compiled."


@pytest.fixture
def rejected():
    demand = Demand("train", MemoryNeed(20 * GIB, 2 * GIB, 3 * GIB), TARGET.memory, RUN)
    return CompileResult(
        TARGET, 4, [], TooLarge(demand), [STAGE], ["use smaller batches", "use stages"]
    )


def test_a_verdict_without_room_lists_the_advice(rejected):
    assert output.verdict(rejected).splitlines() == [
        "Does not fit: train takes 20 GiB of 15.8 GiB on a device. "
        "Changes that should make it fit:",
        "  - use smaller batches",
        "  - use stages",
    ]


def test_the_stages_are_a_table():
    title, names, row = output.describe_stages([STAGE], TARGET).splitlines()
    assert title == "memory of each device of the pipeline"
    assert names.split()[-2:] == ["code", "total"]
    assert row.split() == ["0", "0,", "1", *["1", "GiB"] * 4, "0", "B", "4", "GiB", "25.4%"]


def test_the_document_is_json_and_has_what_the_text_has(rejected):
    document = json.loads(json.dumps(output.document(rejected)))
    assert document["target"]["devices"] == 16
    assert not document["fits"]
    assert document["rejected"]["needed"] == 20 * GIB
    assert document["stages"][0]["total"] == 4 * GIB
    assert document["advice"] == rejected.advice
    accepted = output.document(CompileResult(TARGET, 4, [PROGRAM]))
    assert (accepted["fits"], accepted["rejected"]) == (True, None)
    assert accepted["programs"][0]["name"] == "train"


def _halved():
    return {kind: size // 2 for kind, size in PROGRAM.memory.items()}
