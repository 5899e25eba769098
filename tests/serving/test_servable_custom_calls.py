import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy.serving import artifact
from convoy.serving.servable import unknown_calls


def test_programs_of_an_export_have_no_unknown_calls(pictures):
    for program in artifact.read(pictures[0] / "1").programs.values():
        assert unknown_calls(jax.export.deserialize(bytearray(program.code)).mlir_module()) == []


def test_other_calls_are_named():
    call = jax.ffi.ffi_call("some.name", jax.ShapeDtypeStruct((1,), np.float32))
    check = jax.export.DisabledSafetyCheck.custom_call("some.name")
    exporting = jax.export.export(
        jax.jit(lambda x: call(jnp.sin(x))), platforms=["cpu"], disabled_checks=[check]
    )
    module = exporting(jax.ShapeDtypeStruct((1,), np.float32)).mlir_module()
    assert unknown_calls(module) == ["some.name"]


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("stablehlo.custom_call @Sharding(%0)", []),
        ('#loc1 = loc("custom_call.py":1:2)', []),
        ('stablehlo.custom_call @"a b"(%0)', ["a b"]),
        ('"stablehlo.custom_call"(%0) <{call_target_name = "x"}>', ["custom_call"]),
    ],
)
def test_every_spelling_is_found(text, unknown):
    assert unknown_calls(text) == unknown
