import jax
import jax.numpy as jnp
from convoy.report.convolution_kernels import convolutions
from tests.report.programs import compiled


def test_a_convolution_by_xla_is_counted():
    def convolve(x, kernel):
        # Whole numbers are not for oneDNN.
        x, kernel = x.astype(jnp.int32), kernel.astype(jnp.int32)
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    _, program = compiled(convolve, (2, 8, 8, 3), (3, 3, 3, 4))
    (found,) = convolutions(program)
    assert (found["kernel"], found["implementation"]) == ("XLA", "")
    assert found["flops"] == 2 * 2 * 8 * 8 * 4 * 9 * 3
