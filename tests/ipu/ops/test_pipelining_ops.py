from convoy import ipu


def test_a_checkpoint_returns_tensors_and_logs_once_that_it_has_no_effect(caplog):
    tensors = (1, {"a": 2})
    for _ in range(2):
        assert ipu.pipelining_ops.recomputation_checkpoint(tensors, name="x") is tensors
    assert caplog.text.count("ignored in pipelining_ops: recomputation_checkpoint") == 1
