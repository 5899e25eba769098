import pytest
from convoy.compile.targets import GPUS, TPUS, Target, parse_target
from convoy.plan.link_speeds import LINKS, target_machine


def test_every_kind_of_device_has_speeds_and_their_source():
    assert LINKS.keys() == TPUS.keys() | GPUS.keys()
    assert all(speed.source for speed in LINKS.values())


def test_chips_of_a_pod_exchange_over_their_links_and_pods_over_the_network():
    machine = target_machine(parse_target("tpu:v5e:16x16"), latency=1e-3)
    assert (machine.devices, machine.hosts, machine.group) == (256, 64, 256)
    # 200 GB/s leave a chip.
    assert machine.exchange_seconds(256, 1, 1e9) == pytest.approx(2 * 255 / 256 / 200)
    four = target_machine(Target("four pods", "tpu", "v5e", (64, 16)), latency=1e-3)
    network = 2 * 3 / 4 / 800 + 2 * 2 * 1e-3
    assert four.exchange_seconds(1024, 1, 1e9) == pytest.approx(2 * 255 / 256 / 200 + network)


def test_gpus_of_a_host_exchange_over_nvlink_and_hosts_over_the_network():
    machine = target_machine(parse_target("gpu:h100:4x8"), latency=0.0)
    assert (machine.devices, machine.hosts, machine.group) == (32, 4, 8)
    expected = 2 * 7 / 8 / 450 + 2 * 3 / 4 / 400
    assert machine.exchange_seconds(32, 1, 1e9) == pytest.approx(expected)


def test_a_host_with_fewer_gpus_has_fewer_network_cards():
    machine = target_machine(parse_target("gpu:a100:4x2"), latency=0.0)
    assert machine.network == pytest.approx(50e9)
