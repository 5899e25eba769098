import pytest
from benchmarks.peers.profile import FUSED, kind_of
from benchmarks.peers.workloads import WORKLOADS


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
def test_instructions_are_classified_by_name(instruction, kind):
    assert kind_of(instruction, WORKLOADS["resnet50"]) == kind


def test_in_inference_our_kernels_count_as_convolutions_with_fused_operations():
    assert kind_of("ffi_call.3", WORKLOADS["infer-1"]) == FUSED
