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


def test_gathers_that_were_combined_count_as_one_with_the_bytes_of_all_results():
    text = PROGRAM.replace("TRIPS", "").replace(
        "%gather = (f32[128], f32[1024]) all-gather-start(%done), dimensions={0}",
        "%gather = ((f32[128], f32[2]), (f32[1024], f32[16])) all-gather-start(%done, %small)",
    )
    found = find_collectives(list(all_instructions(Program.parse(text))))
    assert Collective("all-gather", 1, 4096 + 64) in found


def test_a_loop_without_a_note_runs_as_often_as_its_condition_says():
    counted = "%limit = s32[] constant(5)\n  ROOT %less = pred[] compare(%n, %limit), direction=LT"
    text = PROGRAM.replace("TRIPS", "").replace("ROOT %less = pred[] constant(true)", counted)
    found = find_collectives(list(all_instructions(Program.parse(text))))
    assert [(c.kind, c.count) for c in found] == [("all-reduce", 10), ("all-gather", 5)]


def test_an_operation_that_is_divided_over_several_fusions_counts_once():
    chain = ', frontend_attributes={chain_id="3"}'
    text = PROGRAM.replace("to_apply=%add", f"to_apply=%add{chain}").replace("TRIPS", "")
    (reduced, _) = find_collectives(list(all_instructions(Program.parse(text))))
    assert reduced == Collective("all-reduce", 1, 4096)


def test_an_all_reduce_of_which_a_device_keeps_a_slice_is_a_reduce_scatter():
    text = PROGRAM.replace("TRIPS", "").replace("%fused", "%all-reduce-scatter.clone.1")
    text = text.replace(
        "ROOT %inner = f32[1024]{0:T(256)} all-reduce(%p), to_apply=%add",
        "%inner = f32[1024]{0:T(256)} all-reduce(%p), to_apply=%add\n"
        "  ROOT %kept = f32[256]{0:T(256)} slice(%inner), slice={[0:256]}",
    )
    found = find_collectives(list(all_instructions(Program.parse(text))))
    assert Collective("reduce-scatter", 1, 1024) in found
    assert Collective("all-reduce", 1, 4096) in found


@pytest.mark.parametrize("target", ["xla_ffi_python_gpu_callback", "MoveToHost"])
def test_calls_of_the_host_are_found(target):
    assert find_host_calls(instructions(target=target)) == [target]
    assert find_host_calls(instructions()) == []
