"""Places of processes that clusters start: what each cluster tells them is enough."""

import http.server
import socket
import threading

import pytest
from convoy.distributed.process import CLUSTER, Place
from convoy.launch.cluster import CLUSTERS, METADATA, expand_hosts, find_cluster, first_pod
from convoy.launch.topology import LOOPBACK, PORT, LaunchError, Topology

SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_JOB_ID": "8193",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    for variables in (SLURM, KUBERNETES, MPI):
        for name in variables:
            monkeypatch.delenv(name, raising=False)


def started_by(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node1,other", ["node1", "other"]),
        ("node[01-03,7],gpu1", ["node01", "node02", "node03", "node7", "gpu1"]),
        ("rack[1-2]n[8-9]x", ["rack1n8x", "rack1n9x", "rack2n8x", "rack2n9x"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
    ],
)
def test_a_list_of_slurm_is_expanded(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    ("variables", "name"), [(SLURM, "slurm"), (KUBERNETES, "kubernetes"), (MPI, "mpi")]
)
def test_a_cluster_is_recognised_by_its_variables(monkeypatch, variables, name):
    assert find_cluster("auto") is None
    started_by(monkeypatch, variables)
    assert find_cluster("auto") is CLUSTERS[name] is find_cluster(name)
    assert find_cluster("none") is None


def test_a_cluster_that_has_not_started_the_process_is_refused():
    with pytest.raises(LaunchError, match="SLURM_PROCID, SLURM_STEP_NUM_TASKS is not set, so Slur"):
        find_cluster("slurm")
    with pytest.raises(LaunchError, match=r"'slrm' is not one of .* Did you mean slurm\?"):
        find_cluster("slrm")


def test_processes_of_one_node_of_slurm_meet_on_the_loopback_address(monkeypatch):
    started_by(monkeypatch, SLURM)
    # The port follows from the job's number.
    assert CLUSTERS["slurm"].find_place(None, 0) == Place(f"{LOOPBACK}:20001", 2, 1, LOOPBACK)
    assert CLUSTERS["slurm"].find_place(2, 7).coordinator == f"{LOOPBACK}:7"


def test_processes_on_several_nodes_of_slurm_meet_on_the_first(monkeypatch):
    started_by(monkeypatch, SLURM | {"SLURM_STEP_NODELIST": "localhost,127.0.0.2"})
    assert CLUSTERS["slurm"].find_place(2, 7) == Place("localhost:7", 2, 1, LOOPBACK)


def test_another_number_of_processes_than_the_clusters_is_refused(monkeypatch):
    started_by(monkeypatch, SLURM)
    with pytest.raises(LaunchError, match=r"has 2 processes, but --num-instances is 3. Pass --num"):
        CLUSTERS["slurm"].find_place(3, 0)


def test_pods_meet_at_the_first_one_by_its_name(monkeypatch):
    started_by(monkeypatch, KUBERNETES)
    monkeypatch.setattr(socket, "gethostname", lambda: "train-worker-0-3")
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-worker-0-3.train.default.svc")
    place = CLUSTERS["kubernetes"].find_place(4, 0)
    coordinator = f"train-worker-0-0.train.default.svc:{PORT}"
    assert place == Place(coordinator, 4, 3, "train-worker-0-3")
    assert first_pod("job-13", 13) == "job-0"


@pytest.mark.parametrize("instances", [None, 3])
def test_the_number_of_pods_has_to_be_passed(monkeypatch, instances):
    started_by(monkeypatch, KUBERNETES)
    with pytest.raises(
        LaunchError, match=r"--num-instances is .*, but this pod has JOB_COMPLETION"
    ):
        CLUSTERS["kubernetes"].find_place(instances, 0)


def test_a_pod_without_a_name_that_ends_with_its_index_is_refused():
    with pytest.raises(LaunchError, match="name pod-x does not end with -3"):
        first_pod("pod-x.domain", 3)


def test_mpi_leaves_the_address_to_jax(monkeypatch):
    started_by(monkeypatch, MPI)
    assert CLUSTERS["mpi"].find_place(2, 0) == Place(CLUSTER, 2, 1)


ATTRIBUTES = {
    "agent-worker-number": "2",
    "worker-network-endpoints": "a:8470:10.0.0.5,b:8470:10.0.0.6,c:1:10.0.0.7,10.0.0.8",
}


class Metadata(http.server.BaseHTTPRequestHandler):
    """Google's metadata server, for one virtual machine of four."""

    def do_GET(self):
        assert self.headers["Metadata-Flavor"] == "Google"
        folder, _, key = self.path.rpartition("/")
        assert folder == "/computeMetadata/v1/instance/attributes"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(ATTRIBUTES[key].encode())

    def log_message(self, *_):
        pass


def test_tpu_virtual_machines_meet_by_their_metadata(monkeypatch):
    with http.server.HTTPServer((LOOPBACK, 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(METADATA, f"{LOOPBACK}:{server.server_port}")
        try:
            place = find_cluster("tpu-vm").find_place(4, 0)
        finally:
            server.shutdown()
            thread.join()
    assert place == Place(f"10.0.0.5:{PORT}", 4, 2, "10.0.0.7")


def test_a_machine_without_metadata_is_one_line(monkeypatch):
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv(METADATA, f"{LOOPBACK}:{port}")
    with pytest.raises(LaunchError, match=r"did not answer for worker-network-endpoints.* Run the"):
        CLUSTERS["tpu-vm"].find_place(None, 0)


def test_the_variables_of_a_process_name_its_place_and_devices():
    topology = Topology(4, 4, devices_per_replica=2, heartbeat_timeout=9)
    assert topology.environment_at(Place("a:1", 4, 3, "b")) == {
        "CONVOY_COORDINATOR": "a:1",
        "CONVOY_PROCESSES": "4",
        "CONVOY_PROCESS": "3",
        "CONVOY_ADDRESS": "b",
        "CONVOY_HEARTBEAT_TIMEOUT": "9",
        "CONVOY_DEVICES": "2",
        "CONVOY_DEVICES_PER_REPLICA": "2",
    }
    assert Topology(1, 1).environment_at(Place("", 1, 0)).keys() == {
        "CONVOY_DEVICES",
        "CONVOY_DEVICES_PER_REPLICA",
    }
