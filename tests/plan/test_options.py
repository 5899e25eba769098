"""Values of the flags of `convoy plan`."""

import pytest
from convoy.configuration import ConfigurationError, read
from convoy.plan.options import PlanOptions

NEEDED = {"model": "resnet50", "devices": ["8"], "global_batch": "256"}


def options(**values):
    return read(PlanOptions, NEEDED | values, flags=True)


def test_sizes_speeds_and_times_have_units():
    made = options(memory="16GiB", device_flops="100TFLOPS", device_bandwidth="1TB/s")
    assert (made.memory, made.device_flops, made.device_bandwidth) == (16 * 2**30, 1e14, 1e12)
    made = options(network="100Gbit/s", link="50GB/s", latency="20us")
    assert (made.network, made.link) == (12.5e9, 50e9)
    assert made.latency == pytest.approx(20e-6)


def test_the_default_network_is_that_of_the_help_text():
    given, default = options(network="25Gbit/s", latency="30us"), options()
    assert given.network == default.network
    assert given.latency == pytest.approx(default.latency)


def test_several_numbers_of_devices_and_other_names_of_flags():
    made = read(
        PlanOptions,
        {"model-name": "resnet50", "devices": ["8", "16"], "global-batch-size": "256"},
        flags=True,
    )
    assert (made.model, made.devices, made.global_batch) == ("resnet50", (8, 16), 256)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"memory": "16"}, "--memory: 16 has no unit. Pass for example 16GB"),
        ({"latency": "20"}, "--latency: '20' is not a time. Pass for example 20us"),
        ({"devices": ["0"]}, "--devices 0: pass 1 or more."),
        ({"optimizer": "sdg"}, "--optimizer: 'sdg' is not one of"),
        ({"measure": True, "device_flops": "1TFLOPS"}, "--measure"),
    ],
)
def test_a_wrong_value_is_described_in_one_line(values, problem):
    with pytest.raises(ConfigurationError) as error:
        options(**values)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
