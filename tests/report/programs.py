"""Programs that XLA has compiled."""

import jax
import numpy as np
from convoy.report.hlo import Program


def compiled(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    found = jax.jit(function).lower(*arguments).compile()
    return found, Program.parse(found.as_text())
