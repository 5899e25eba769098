import pytest
from convoy.report.hlo import find_layer


@pytest.mark.parametrize(
    ("path", "trains", "found"),
    [
        ("jit(run_steps)/while/body/jvp(stem)/conv_general_dilated", True, ("stem", "forward")),
        ("jit(f)/while/body/transpose(jvp(block/conv))/dot", True, ("block/conv", "backward")),
        ("jit(f)/while/body/closed_call/jvp(a)/b/add", True, ("a/b", "forward")),
        ("jit(run_steps)/while/body/sgd/mul", True, ("sgd", "update")),
        ("jit(run_steps)/while/body/head/dot_general", False, ("head", "forward")),
        ("jit(run_steps)/while/body/gather", True, ("", "other")),
        ("", True, ("", "other")),
    ],
)
def test_layers_are_found_by_their_names(path, trains, found):
    assert find_layer(path, trains=trains) == found
