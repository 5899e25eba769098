"""Memory depends neither on the number of steps in a device call nor on the size of the data."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import json, resource, sys
import convoy, keras, numpy as np

batches, steps_per_execution = int(sys.argv[1]), int(sys.argv[2])
budget = 32 << 20

with convoy.Strategy(data_budget=budget).scope():
    model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)

def generate(count):
    for _ in range(count):
        yield np.zeros((256, 1024), "float32"), np.zeros((256, 1), "float32")  # 1 MiB

model.fit(generate(8), steps_per_epoch=8, shuffle=False, verbose=0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model.fit(generate(batches), steps_per_epoch=batches, shuffle=False, verbose=0)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps((after - before) << 10))
"""

MEBIBYTE = 1 << 20


def growth(batches: int, steps_per_execution: int) -> int:
    """Return by how many bytes the peak of a process grew while it streamed 1 MiB batches."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(batches), str(steps_per_execution)],
        capture_output=True,
        text=True,
        check=True,
        # Have the C library give freed blocks back at once, so that the peak is what was in use.
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000", "MALLOC_ARENA_MAX": "1"},
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("batches", "steps"), [(1000, 1), (1000, 100), (1000, 1000), (3000, 1000)])
def test_streaming_stays_within_the_budget(batches, steps):
    block = 8 * MEBIBYTE
    assert growth(batches, steps) <= 32 * MEBIBYTE + block
