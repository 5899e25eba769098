import pytest
from convoy.report.program_analysis import analyze, mode_of
from tests.report.programs import compiled


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("train", "train"),
        ("evaluate, incomplete batch", "evaluate"),
        ("stage 1 predict", "predict"),
        ("device 0 update", "train"),
    ],
)
def test_the_mode_is_in_the_name(name, mode):
    assert mode_of(name) == mode


def test_an_analysis_has_memory_costs_and_xlas_own_figures():
    program, _ = compiled(lambda a, b: a @ b, (8, 16), (16, 32))
    found = analyze("predict", program)
    assert found["flops"] == found["xla_cost"]["flops"] == 2 * 8 * 16 * 32
    assert found["memory"]["argument"] == 4 * (8 * 16 + 16 * 32)
    assert found["convolutions"] == []
    assert found["operations"][0]["flops"] == found["flops"]
