"""Costs and memory of programs that XLA has really compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.report.convolutions import convolutions
from convoy.report.hlo import Array, Program
from convoy.report.layers import where
from convoy.report.memory import Course
from convoy.report.operations import Costs


def compiled(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    found = jax.jit(function).lower(*arguments).compile()
    return found, Program.parse(found.as_text())


def test_a_product_is_counted():
    _, program = compiled(lambda a, b: a @ b, (8, 16), (16, 32))
    assert Costs(program, trains=False).flops == 2 * 8 * 16 * 32


def test_a_loop_counts_as_often_as_it_runs():
    def powers(a):
        return jax.lax.fori_loop(0, 5, lambda _, x: x @ a, a)

    _, program = compiled(powers, (16, 16))
    rows = Costs(program, trains=False).rows
    assert sum(row.flops for row in rows if "dot" in row.kind) == 5 * 2 * 16**3


def test_a_convolution_by_xla_is_counted():
    def convolve(x, kernel):
        # Whole numbers are not for oneDNN.
        x, kernel = x.astype(jnp.int32), kernel.astype(jnp.int32)
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    _, program = compiled(convolve, (2, 8, 8, 3), (3, 3, 3, 4))
    (found,) = convolutions(program)
    assert (found["kernel"], found["implementation"]) == ("XLA", "")
    assert found["flops"] == 2 * 2 * 8 * 8 * 4 * 9 * 3


def test_only_what_is_picked_of_an_array_is_moved():
    _, program = compiled(lambda x: jnp.sin(x[3:5]) + 1, (1000, 8))
    assert Costs(program, trains=False).bytes < 1000 * 8 * 4 / 10


def test_the_course_of_memory_comes_to_what_xla_sets_aside():
    def chain(x, a):
        for _ in range(4):
            x = jnp.tanh(x @ a)
        return jnp.sum(x)

    found, program = compiled(jax.grad(chain, argnums=1), (512, 64), (64, 64))
    course = Course(program, trains=True).to_json()
    assert course["peak"] == pytest.approx(found.memory_analysis().temp_size_in_bytes, rel=0.02)
    assert course["at_peak"][0]["bytes"] == 512 * 64 * 4
    assert max(point[1] for point in course["points"]) == course["peak"]


@pytest.mark.parametrize(
    ("path", "trains", "found"),
    [
        ("jit(_run_whole)/while/body/jvp(stem)/conv_general_dilated", True, ("stem", "forward")),
        ("jit(f)/while/body/transpose(jvp(block/conv))/dot", True, ("block/conv", "backward")),
        ("jit(f)/while/body/closed_call/jvp(a)/b/add", True, ("a/b", "forward")),
        ("jit(_run_whole)/while/body/sgd/mul", True, ("sgd", "update")),
        ("jit(_run_whole)/while/body/head/dot_general", False, ("head", "forward")),
        ("jit(_run_whole)/while/body/gather", True, ("", "other")),
        ("", True, ("", "other")),
    ],
)
def test_layers_are_found_by_their_names(path, trains, found):
    assert where(path, trains=trains) == found


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
