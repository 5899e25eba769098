import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from convoy.cpu import threads
from jax import lax

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("devices", "cores", "own"), [(1, 2, False), (2, 2, True), (3, 4, True), (4, 2, False)]
)
def test_a_device_keeps_to_a_core_where_there_are_enough(monkeypatch, devices, cores, own):
    monkeypatch.setattr(threads, "cores", lambda: cores)
    monkeypatch.setattr(jax, "local_device_count", lambda _: devices)
    assert threads.pinned() == own


def test_lanes_of_one_device_keep_to_cores(monkeypatch):
    monkeypatch.setattr(jax, "local_device_count", lambda _: 1)
    for cores, own in ((1, False), (2, True), (8, True)):
        monkeypatch.setattr(threads, "cores", lambda cores=cores: cores)
        assert not threads.pinned()
        with threads.limit(1):
            assert threads.pinned() == own


def test_devices_with_several_threads_run_where_they_like(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 2 * jax.local_device_count("cpu"))
    assert not threads.pinned()


def test_what_is_lowered_can_be_kept_to_fewer_threads(monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: 4 * jax.local_device_count("cpu"))
    with threads.limit(2):
        assert threads.per_device() == 2
        with threads.limit(9):
            assert threads.per_device() == 4
    assert threads.per_device() == 4


@pytest.mark.usefixtures("native")
def test_a_convolution_says_whether_it_keeps_to_a_core(monkeypatch):
    def convolve(x, w):
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)

    arrays = np.ones((1, 8, 8, 4), np.float32), np.ones((3, 3, 4, 4), np.float32)
    lowered = jax.jit(convolve).lower(*arrays).as_text()
    assert "own_core = false" in lowered
    monkeypatch.setattr(threads, "cores", lambda: jax.local_device_count("cpu"))
    lowered = jax.jit(lambda x, w: convolve(x, w)).lower(*arrays).as_text()
    assert "own_core = true" in lowered


TWO_DEVICES = """
import os, threading
cores = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, cores)
import convoy, jax, numpy as np
from jax import lax
convoy.Strategy(devices=2)

def allowed():
    found = []
    for task in os.listdir("/proc/self/task"):
        lines = open(f"/proc/self/task/{task}/status").read().splitlines()
        found += [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")]
    return set(found)

convolve = jax.jit(lambda x, w: lax.fori_loop(0, 40, lambda _, x: lax.conv_general_dilated(
    x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")), x))
x, w = np.zeros((8, 32, 32, 32), np.float32), np.zeros((3, 3, 32, 32), np.float32)
placed = [(jax.device_put(x, d), jax.device_put(w, d)) for d in jax.devices()]
jax.block_until_ready([convolve(*pair) for pair in placed])
before, seen, done = allowed(), set(), threading.Event()

def look():
    while not done.is_set():
        seen.update(allowed())

looking = threading.Thread(target=look)
looking.start()
for _ in range(50):
    jax.block_until_ready([convolve(*pair) for pair in placed])
done.set()
looking.join()
assert {str(core) for core in cores} <= seen, (cores, seen)
assert allowed() == before, (before, allowed())
"""


@pytest.mark.usefixtures("native")
def test_threads_are_free_again_after_a_convolution():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core")
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
