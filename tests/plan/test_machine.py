import pytest
from convoy.plan.machine import Machine

HOSTS = Machine(
    devices=64, per_host=8, memory=1e9, link=10e9, exchange=4e9, network=2e9, latency=1e-3
)


def test_one_replica_exchanges_nothing():
    assert HOSTS.exchange_seconds(1, 1, 1e9) == 0


def test_replicas_of_a_host_exchange_at_its_speed():
    assert HOSTS.exchange_seconds(2, 1, 1e9) == pytest.approx(1 / 4)
    assert HOSTS.exchange_seconds(8, 1, 1e9) == pytest.approx(2 * 7 / 8 / 4)


def test_hosts_add_what_their_network_takes():
    within, between = 2 * 7 / 8 / 4, 2 * 7 / 8 / 2 + 2 * 3 * 1e-3
    assert HOSTS.exchange_seconds(64, 1, 1e9) == pytest.approx(within + between)


def test_stages_of_a_host_share_its_network():
    # 4 stages: 2 replicas on each of 8 hosts, and 4 of their exchanges at once.
    within, between = 1 / 4, 2 * 7 / 8 * 4 / 2 + 2 * 3 * 1e-3
    assert HOSTS.exchange_seconds(16, 4, 1e9) == pytest.approx(within + between)
