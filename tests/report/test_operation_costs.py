import jax
import jax.numpy as jnp
from convoy.report.operation_costs import Costs
from tests.report.programs import compiled


def test_a_product_is_counted():
    _, program = compiled(lambda a, b: a @ b, (8, 16), (16, 32))
    assert Costs(program, trains=False).flops == 2 * 8 * 16 * 32


def test_a_loop_counts_as_often_as_it_runs():
    def powers(a):
        return jax.lax.fori_loop(0, 5, lambda _, x: x @ a, a)

    _, program = compiled(powers, (16, 16))
    rows = Costs(program, trains=False).rows
    assert sum(row.flops for row in rows if "dot" in row.kind) == 5 * 2 * 16**3


def test_only_what_is_picked_of_an_array_is_moved():
    _, program = compiled(lambda x: jnp.sin(x[3:5]) + 1, (1000, 8))
    assert Costs(program, trains=False).bytes < 1000 * 8 * 4 / 10
