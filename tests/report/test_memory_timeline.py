import jax
import jax.numpy as jnp
import pytest
from convoy.report.memory_timeline import memory_timeline
from tests.report.programs import compiled


def test_the_peak_is_what_xla_allocates():
    def chain(x, a):
        for _ in range(4):
            x = jnp.tanh(x @ a)
        return jnp.sum(x)

    found, program = compiled(jax.grad(chain, argnums=1), (512, 64), (64, 64))
    timeline = memory_timeline(program, trains=True)
    assert timeline["peak"] == pytest.approx(found.memory_analysis().temp_size_in_bytes, rel=0.02)
    assert timeline["at_peak"][0]["bytes"] == 512 * 64 * 4
    assert max(point[1] for point in timeline["points"]) == timeline["peak"]
