import pytest
from benchmarks.peers.profile import kind_of


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("conv_general_dilated.12", "convolutions"),
        ("ffi_call.3", "batch normalisation"),
        ("reduce_window_max.1", "pooling"),
        ("ynn_fusion.2", "matrix products"),
        ("copy.7", "copies and transposes"),
        ("add_divide_fusion.60", "element by element, and sums"),
        ("bitcast_multiply_fusion", "element by element, and sums"),
        ("while.1", "others"),
    ],
)
def test_instructions_are_told_apart_by_name(instruction, kind):
    assert kind_of(instruction) == kind
