from collections import Counter

import pytest
from benchmarks.peers import profile
from convoy.report.hlo import Program

PROGRAM = """HloModule jit_step

%body (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %dot.2 = f32[8,4]{1,0} dot(%p, %p), lhs_contracting_dims={1}, metadata={op_name="jit(f)/jvp(dense)/dot_general"}
  ROOT %add.1 = f32[8,4]{1,0} add(%dot.2, %dot.2), metadata={op_name="jit(f)/jvp(dense)/add"}
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  ROOT %call.7 = f32[8,4]{1,0} call(%x), to_apply=%body
}
"""  # noqa: E501


def convolution(form, groups, target="convoy_convolution"):
    # Weights of 4 to 8 channels, 3x5, or of one channel in each of 8 groups.
    weights = [8, 1, 1, 3, 5] if groups else [8, 4, 3, 5]
    numbers = [form, 3, 2, int(groups), 2, 4, 9, 9, *[0] * 4, *weights]
    attributes = f'custom_call_target="{target}", description = dense<{numbers}>'
    text = f"ENTRY %main () -> f32[1] {{\n  ROOT %c = f32[1]{{0}} custom-call(), {attributes}\n}}\n"
    return Program.parse(text).computations["main"][0]


@pytest.mark.parametrize(
    ("form", "groups", "kind"),
    [
        (0, False, "3x5 convolution, forward"),
        (1, False, "3x5 convolution, input gradient"),
        (2, True, "3x5 depthwise convolution, weight gradient"),
    ],
)
def test_convolutions_are_told_apart_by_window_groups_and_form(form, groups, kind):
    assert profile.kind_of(convolution(form, groups), "convolution", "backward") == kind


def test_another_kernel_with_a_description_is_no_convolution():
    pooling = convolution(60, False, "convoy_max_pool")

    assert profile.kind_of(pooling, "max pool", "forward") == "max pool, forward"


def test_time_is_summed_by_kind_and_other_programs_are_a_row():
    seconds = Counter({"dot.2": 0.4, "add.1": 0.2, "call.7": 0.9, "copy_of_another.3": 0.1})

    dot, add, elsewhere = profile.sum_by_kind(Program.parse(PROGRAM), seconds, 2, trains=True)

    assert (dot["kind"], dot["seconds"], dot["flops"]) == ("dot, forward", 0.2, 2 * 8 * 4 * 4)
    assert (add["kind"], add["seconds"], add["bytes"]) == ("add, forward", 0.1, 3 * 8 * 4 * 4)
    assert (elsewhere["kind"], elsewhere["seconds"]) == (profile.ELSEWHERE, 0.05)


def test_a_table_shows_the_time_at_the_peak_of_the_machine():
    rows = [
        {"kind": f"kind {number}", "count": 1, "seconds": 0.1, "flops": 4e9, "bytes": 1e9}
        for number in range(profile.SHOWN + 2)
    ]
    found = {"step_seconds": 0.5, "kinds": rows, "peak": {"flops": 100e9, "bytes": 20e9}}

    lines = profile.table(found).splitlines()

    assert "500.0 ms a step; the operations together take 1,600.0 ms" in lines[0]
    assert lines[4] == "| kind 0 | 1 | 100.0 | 6% | 4.00 | 1.00 | 50.0 |"
    assert lines[-1].startswith("| 2 other kinds | 2 | 200.0 |")
