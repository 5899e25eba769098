from convoy.report.hlo import Array, Program


def test_a_program_is_taken_apart():
    text = """HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[4,2])) -> (s32[], f32[4,2]) {
  %p = (s32[], f32[4,2]{1,0}) parameter(0)
  ROOT %t = (s32[], /*index=1*/f32[4,2]{1,0}) tuple(%a, %b)
}

ENTRY %main (x: f32[4,2]) -> bf16[] {
  %x = f32[4,2]{1,0} parameter(0)
  %w = (s32[], f32[4,2]{1,0}) while(%x), condition=%c, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  ROOT %r = bf16[] custom-call(%w, %x), custom_call_target="k", metadata={op_name="jit(f)/k"}
}
"""
    program = Program.parse(text)
    assert program.entry == "main"
    assert list(program.walk()) == [("main", 1), ("c", 3), ("body", 3)]
    _, loop, call = program.computations["main"]
    assert loop.results == (Array("s32", ()), Array("f32", (4, 2)))
    assert (call.operands, call.target, call.path) == (("w", "x"), "k", "jit(f)/k")
    assert call.is_root
    assert (call.bytes, loop.bytes) == (2, 36)
