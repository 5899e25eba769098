import pytest
from convoy.launch.topology import LaunchError, Topology, parse_hosts


def environments(topology):
    return [task.environment for task in topology.tasks(["true"])]


def test_each_process_gets_its_index_and_its_devices():
    first, second = environments(Topology(instances=2, replicas=4, devices_per_replica=3))
    assert first["CONVOY_COORDINATOR"] == second["CONVOY_COORDINATOR"]
    assert first["CONVOY_COORDINATOR"].startswith("127.0.0.1:")
    assert (first["CONVOY_PROCESS"], second["CONVOY_PROCESS"]) == ("0", "1")
    assert first["CONVOY_PROCESSES"] == second["CONVOY_PROCESSES"] == "2"
    assert first["CONVOY_DEVICES"] == second["CONVOY_DEVICES"] == "6"


def test_processes_can_have_parts_of_one_replica():
    topology = Topology(instances=4, replicas=2, devices_per_replica=4)
    assert [one["CONVOY_DEVICES"] for one in environments(topology)] == ["2"] * 4
    assert topology.describe().splitlines()[1:] == [
        "  process 0: localhost, devices 0 to 1 of replica 0",
        "  process 1: localhost, devices 2 to 3 of replica 0",
        "  process 2: localhost, devices 0 to 1 of replica 1",
        "  process 3: localhost, devices 2 to 3 of replica 1",
    ]
    with pytest.raises(LaunchError, match="instances that divides the devices of each replica"):
        Topology(instances=4, replicas=2, devices_per_replica=3)


def test_a_single_process_has_no_coordinator():
    (only,) = environments(Topology(instances=1, replicas=2))
    assert only["CONVOY_DEVICES"] == "2"
    assert "CONVOY_COORDINATOR" not in only


def test_hosts_get_equal_blocks_of_processes_and_are_addressed_by_name():
    topology = Topology(instances=4, replicas=4, hosts=("h1", "h2"), port=4000)
    tasks = topology.tasks(["true"])
    assert [task.host for task in tasks] == ["h1", "h1", "h2", "h2"]
    assert [task.cores["local_rank"] for task in tasks] == [0, 1, 0, 1]
    assert {task.environment["CONVOY_COORDINATOR"] for task in tasks} == {"h1:4000"}
    assert [task.environment["CONVOY_ADDRESS"] for task in tasks] == ["h1", "h1", "h2", "h2"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"instances": 0, "replicas": 1}, "--num-instances 0 is too small"),
        ({"instances": 2, "replicas": 3}, "Pass --num-replicas 4"),
        ({"instances": 10**9, "replicas": 10**9}, "Pass at most 4096"),
        ({"instances": 1, "replicas": 1, "heartbeat_timeout": float("inf")}, "inf is not a time"),
        ({"instances": 3, "replicas": 3, "hosts": ("a", "b")}, "Pass a multiple of 2"),
        ({"instances": 1, "replicas": 1, "devices_per_replica": 0}, "--devices-per-replica 0"),
    ],
)
def test_invalid_numbers_are_refused_with_advice(settings, message):
    with pytest.raises(LaunchError, match=message):
        Topology(**settings)


def test_a_host_file_names_a_host_in_each_line(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("h1 slots=2\n\n# none\nh2  # the other\n")
    assert parse_hosts(None, str(file)) == ("h1", "h2")
    file.write_text("# none\n")
    with pytest.raises(LaunchError, match="names no host"):
        parse_hosts(None, str(file))
    with pytest.raises(LaunchError, match="cannot be read: No such file"):
        parse_hosts(None, str(tmp_path / "missing"))
