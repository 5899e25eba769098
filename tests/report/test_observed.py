import jax
import numpy as np
from convoy.report.observed import ObservedProgram


def test_an_observed_program_is_compiled_once():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    seen, called = [], []

    def on_compiled(about, program, begin):
        seen.append((about["name"], program.memory_analysis().output_size_in_bytes))
        return len(seen) - 1

    @jax.jit
    def double(_, x):
        return 2 * x

    program = ObservedProgram("double", double, 1, on_compiled, called.append)
    for size in (4, 4, 6):
        x = jax.device_put(np.ones(size, np.float32))
        compiled.clear()
        np.testing.assert_array_equal(program(1.0, x), np.full(size, 2))
        assert len(compiled) == (len(called) != 2)
    assert seen == [("double", 16), ("double", 24)]
    assert called == [0, 0, 1]
