"""Rules of JAX are replaced and restored, and choices of kernels are counted."""

import jax
import jax.numpy as jnp
import pytest
from convoy.cpu import lowering
from jax import lax
from jax.interpreters import mlir


@pytest.fixture(autouse=True)
def _own_rules(monkeypatch):
    """Keep the rules that are installed for the process out of these tests."""
    monkeypatch.setattr(lowering, "_replaced", {})


def test_a_rule_is_used_until_it_is_removed():
    own = lowering.jax_rule(lax.erf_p)
    seen = []

    def rule(ctx, x, **parameters):
        seen.append(ctx.avals_in[0].shape)
        return own(ctx, x, **parameters)

    x = jnp.ones((2, 3))
    lowering.install(lax.erf_p, rule)
    assert lowering.jax_rule(lax.erf_p) is own
    jax.jit(lambda x: lax.erf(x)).lower(x)
    assert seen == [(2, 3)]
    lowering.remove_all()
    assert lowering.jax_rule(lax.erf_p) is own
    jax.jit(lambda x: lax.erf(x)).lower(x)
    assert seen == [(2, 3)]


def test_a_rule_that_is_installed_twice_is_removed_to_jaxs_own():
    own = lowering.jax_rule(lax.erf_inv_p)
    lowering.install(lax.erf_inv_p, lambda *_, **__: [])
    lowering.install(lax.erf_inv_p, lambda *_, **__: [])
    lowering.remove_all()
    assert mlir._platform_specific_lowerings["cpu"][lax.erf_inv_p].rule is own


def test_counts_are_by_name_in_order():
    lowering.reset_counts()
    for kernel in ("sum pool", "max pool", "sum pool"):
        lowering.count(kernel)
    assert list(lowering.counts().items()) == [("max pool", 1), ("sum pool", 2)]
    lowering.reset_counts()
    assert lowering.counts() == {}
