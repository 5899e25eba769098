"""JobSet manifests: checked by the types of JobSet's and Kubernetes's interfaces."""

import pytest
import yaml
from convoy.cli import launch as launch_command
from tests import parts

from .slurm_cluster import fill_in
from .test_slurm import write

FILLED = {"image": "host/convoy:1", "claim": "runs", "cores": "8", "memory": "32Gi"}


def manifest(capsys, *words):
    text = write(capsys, *words, target="kubernetes")
    for place in FILLED:
        assert f"<{place}>" in text.partition("apiVersion")[0]
    return yaml.safe_load(fill_in(text, **FILLED))


def pods(found):
    (worker,) = found["spec"]["replicatedJobs"]
    return worker["template"]["spec"], worker["template"]["spec"]["template"]["spec"]


@parts.needs("kubeflow-trainer-api")
@pytest.mark.parametrize("target", [None, "tpu:v5e:4x4", "tpu:v5p:2x2x2", "gpu:h100:4x8"])
def test_a_manifest_has_only_fields_that_jobset_has(capsys, target):
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    words = ["--num-instances", 4] if target is None else ["--target", target]
    if target == "tpu:v5p:2x2x2":
        words += ["--num-instances", 2]
    found = manifest(capsys, *words, "--max-restarts", 3, "train.py")
    # Unknown fields are dropped, and wrong types are refused.
    assert JobsetV1alpha2JobSet.from_dict(found).to_dict() == found


def test_pods_run_the_launch_and_restart_together(capsys):
    words = ["--target", "tpu:v6e:8x8", "--devices-per-replica", 2, "--max-restarts", 3]
    found = manifest(capsys, *words, "--heartbeat-timeout", 90, "my_train.py", "--epochs", 3)
    assert found["metadata"]["name"] == "my-train" == found["spec"]["network"]["subdomain"]
    assert found["spec"]["failurePolicy"] == {
        "maxRestarts": 3,
        "rules": [
            {
                "name": "preempted",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
    }
    job, pod = pods(found)
    assert job["completions"] == job["parallelism"] == 16
    assert job["completionMode"] == "Indexed"
    assert job["backoffLimit"] == 0
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [75]
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] == 300
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "8x8",
    }
    (container,) = pod["containers"]
    command = "convoy launch --cluster kubernetes --num-instances 16 --num-replicas 32"
    flags = "--devices-per-replica 2 --heartbeat-timeout 90 my_train.py --epochs 3"
    assert container["command"] == [*command.split(), *flags.split()]
    assert container["resources"] == {
        "requests": {"cpu": 8, "memory": "32Gi", "google.com/tpu": "4"},
        "limits": {"google.com/tpu": "4"},
    }
    assert container["ports"] == [
        {"name": "coordinator", "containerPort": 29411, "protocol": "TCP"}
    ]


def test_the_command_of_a_pod_is_one_that_launch_understands(capsys):
    found = manifest(capsys, "--target", "gpu:h100:2x8", "--replicas", 16, "--port", 99, "x.py")
    (container,) = pods(found)[1]["containers"]
    assert container["command"][:2] == ["convoy", "launch"]
    flags = vars(launch_command.make_parser().parse_args(container["command"][2:]))
    assert flags["cluster"] == "kubernetes"
    assert (flags["num_instances"], flags["replicas"], flags["port"]) == ("2", "16", "99")
    assert container["ports"][0]["containerPort"] == 99
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}


@pytest.mark.parametrize("words", [["--host", "a,b"], ["--numa-aware"]])
def test_hosts_and_cores_are_chosen_by_kubernetes(capsys, words):
    assert launch_command.main(["--write", "kubernetes", *words, "x.py"]) == 2
    assert f"{words[0]} has no meaning in Kubernetes" in capsys.readouterr().err
