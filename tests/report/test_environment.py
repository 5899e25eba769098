import jax
from convoy.report import environment


def test_the_peak_is_measured_once():
    devices = tuple(jax.devices()[:1])
    peak = environment.peak(devices)
    assert peak["flops_per_second"] > 1e6
    assert peak["bytes_per_second"] > 1e6
    assert environment.peak(devices) is peak


def test_versions_and_the_machine_are_named():
    framework = environment.framework()
    assert framework["versions"]["jax"] == jax.__version__
    assert framework["processors"] >= 1


def test_the_memory_of_the_process_is_known_here():
    assert environment.memory_in_use() > 1 << 20
