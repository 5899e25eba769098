"""CPU kernels for JAX programs."""
