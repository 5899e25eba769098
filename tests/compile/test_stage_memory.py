"""Memory of the devices of a pipeline; `test_session.py` compiles one and checks its numbers."""

from convoy.compile.analysis import ObservedRun
from convoy.compile.stage_memory import StageMemory, stage_memory
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig


def test_a_device_needs_the_sum_of_all_kinds():
    memory = StageMemory(0, (0, 2), state=1, data=20, residuals=300, working=4000, code=50000)
    assert memory.total_bytes == 54321


def test_runs_without_a_pipeline_that_trains_have_no_stages():
    run = ObservedRun("fit", None, ExecutionConfig(Placement(None)))
    assert stage_memory(run, []) == []
    run.runners["train"] = object()
    assert stage_memory(run, []) == []
