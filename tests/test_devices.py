import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy import cpu, devices
from convoy.cpu import threads

pytestmark = pytest.mark.integration


def test_takes_as_many_devices_as_asked_for():
    assert devices.select(3) == tuple(jax.devices()[:3])


class Gpu:
    platform = "gpu"

    def __init__(self, capability):
        self.compute_capability = capability


@pytest.mark.parametrize(("capability", "policy"), [("7.5", "float32"), ("8.0", "mixed_bfloat16")])
def test_bfloat16_is_the_fastest_on_gpus_with_matrix_units_for_it(capability, policy):
    assert devices.fastest_precision(Gpu(capability)) == policy


@pytest.mark.parametrize(("types", "policy"), [((), "float32"), (("bfloat16",), "mixed_bfloat16")])
def test_bfloat16_is_the_fastest_on_cpus_with_instructions_for_it(monkeypatch, types, policy):
    status = cpu.Status(active=True, native=True, half_instructions=types)
    monkeypatch.setattr(cpu, "status", lambda: status)
    assert devices.fastest_precision(jax.devices()[0]) == policy


def test_takes_the_very_devices_it_is_given():
    last = jax.devices()[-1]
    assert devices.select([last]) == (last,)


def test_takes_the_number_from_the_environment(monkeypatch):
    monkeypatch.setenv(devices.VARIABLE, "2")
    assert len(devices.select(None)) == 2


def test_takes_one_device_by_default(monkeypatch):
    monkeypatch.delenv(devices.VARIABLE, raising=False)
    assert len(devices.select(None)) == 1


@pytest.mark.parametrize("text", ["two", "0", "-1", "1.5"])
def test_refuses_a_number_of_devices_that_is_none(monkeypatch, text):
    monkeypatch.setenv(devices.VARIABLE, text)
    with pytest.raises(ValueError, match=rf"CONVOY_DEVICES='{text}' is not a number"):
        devices.select(None)


@pytest.mark.parametrize("count", [0, -2, True])
def test_refuses_a_count_that_is_none(count):
    with pytest.raises(ValueError, match="Pass 1 or more"):
        devices.select(count)


@pytest.mark.parametrize("words", ["two", 2.0, [0, 1]])
def test_refuses_what_is_neither_a_number_nor_devices(words):
    with pytest.raises(ValueError, match="is neither a number of devices nor a list"):
        devices.select(words)


def test_refuses_an_empty_list():
    with pytest.raises(ValueError, match="names no device"):
        devices.select([])


def test_splits_the_cpu_again_where_jax_runs_already():
    chosen = devices.select(9)
    assert len(set(chosen)) == 9
    assert not set(chosen) & set(jax.devices())
    assert devices.select(9) == chosen
    mesh = jax.sharding.Mesh(np.array(chosen), ("replica",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    moved = jax.device_put(jnp.arange(3.0), whole)
    assert jax.jit(lambda x: x + 1)(moved).tolist() == [1, 2, 3]


def test_shares_the_cores_among_the_new_devices():
    devices.select(9)
    assert threads.per_device() == max(1, threads.cores() // 9)


def test_says_what_to_do_when_several_processes_have_too_few(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"9 devices .* JAX has 4 \(cpu\).*CONVOY_DEVICES=9"):
        devices.select(9)


def test_makes_virtual_devices_where_jax_has_not_started():
    program = "import convoy; print(len(convoy.Strategy(devices=3).devices))"
    environment = {key: value for key, value in os.environ.items() if key != devices.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3"
