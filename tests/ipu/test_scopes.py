import pytest
from convoy import ipu


def test_scopes_say_what_has_no_effect(caplog):
    with (
        ipu.scopes.ipu_shard(0),
        ipu.scopes.ipu_jit_scope("0"),
        ipu.scopes.partials_type("float32"),
    ):
        pass
    assert not caplog.records
    with (
        ipu.scopes.ipu_shard([1]),
        ipu.scopes.stochastic_rounding(True),
        ipu.scopes.partials_type("float16"),
        ipu.scopes.frontend_attribute("name", "value"),
    ):
        pass
    assert "ipu_shard(1)" in caplog.text
    assert "stochastic_rounding" in caplog.text
    assert "partials_type" in caplog.text
    assert "frontend_attribute('name')" in caplog.text
    with pytest.raises(ValueError, match="Pass 'float16' or 'float32'"):
        ipu.scopes.partials_type("int8").__enter__()
    with pytest.raises(ValueError, match="is not configured"):
        ipu.scopes.ipu_scope("/device:IPU:1").__enter__()
    with pytest.raises(NotImplementedError, match=r"jax\.pure_callback"):
        ipu.scopes.outside_compilation_scope()
