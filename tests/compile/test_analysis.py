import pytest
from convoy.compile.analysis import Collective, all_instructions, find_collectives, find_host_calls
from convoy.report.hlo import Program

PROGRAM = """HloModule jit_run

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (p: f32[1024]) -> f32[1024] {
  %p = f32[1024]{0:T(256)} parameter(0)
  ROOT %inner = f32[1024]{0:T(256)} all-reduce(%p), to_apply=%add
}

%body (s: (f32[1024])) -> (f32[1024]) {
  %s = (f32[1024]) parameter(0)
  %v = f32[1024] get-tuple-element(%s), index=0
  %start = f32[1024] all-reduce-start(%v), to_apply=%add
  %done = f32[1024] all-reduce-done(%start)
  %gather = (f32[128], f32[1024]) all-gather-start(%done), dimensions={0}
  %gathered = f32[1024] all-gather-done(%gather)
  %fusion = f32[1024] fusion(%gathered), kind=kLoop, calls=%fused
  ROOT %t = (f32[1024]) tuple(%fusion)
}

%condition (s: (f32[1024])) -> pred[] {
  %s = (f32[1024]) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (x: (f32[1024])) -> (f32[1024]) {
  %x = (f32[1024]) parameter(0)
  %call = f32[] custom-call(%x), custom_call_target="CALLBACK_TARGET"
  ROOT %loop = (f32[1024]) while(%x), condition=%condition, body=%body, backend_config={TRIPS}
}
"""


def instructions(trips="", target="__cudnn$convForward"):
    text = PROGRAM.replace("TRIPS", trips).replace("CALLBACK_TARGET", target)
    return list(all_instructions(Program.parse(text)))


def test_collectives_are_counted_where_they_start_and_inside_of_fusions():
    assert find_collectives(instructions()) == [
        Collective("all-reduce", 2, 2 * 4096),
        Collective("all-gather", 1, 4096),
    ]


def test_collectives_in_a_loop_count_as_often_as_it_runs():
    found = find_collectives(instructions('"known_trip_count":{"n":"4"}'))
    assert [(c.kind, c.count) for c in found] == [("all-reduce", 8), ("all-gather", 4)]


@pytest.mark.parametrize("target", ["xla_ffi_python_gpu_callback", "MoveToHost"])
def test_calls_of_the_host_are_found(target):
    assert find_host_calls(instructions(target=target)) == [target]
    assert find_host_calls(instructions()) == []
